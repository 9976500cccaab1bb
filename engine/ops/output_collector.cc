#include "engine/ops/output_collector.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "kernels/boxes/box_rows.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"

namespace voxserve {

OutputCollector::OutputCollector(BatchTasks tasks, const std::vector<int64_t>& point_begin,
                                 absl::Span<InferResult> results, HostMemory* memory)
    : tasks_(tasks), results_(results), memory_(memory) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    // A sample that failed has no points.
    num_answers_.push_back(point_begin[i] == point_begin[i + 1] ? 0 : tasks[i]->num_answers());
  }
}

int64_t OutputCollector::num_answers() const {
  return std::accumulate(num_answers_.begin(), num_answers_.end(), int64_t{0});
}

void OutputCollector::TakeNotFinite() {
  for (size_t i = 0; i < num_samples(); ++i) {
    results_[i].counts.not_finite = not_finite_points()[i];
    results_[i].num_not_finite_boxes = not_finite_boxes()[i];
  }
}

void OutputCollector::SetTensors(absl::Span<const TensorInfo> tensors, std::vector<TensorSet> wanted, int dimension) {
  tensors_ = tensors;
  wanted_tensors_ = std::move(wanted);
  dimension_ = dimension;
}

bool OutputCollector::IsWanted(size_t sample, const Spec& spec) const {
  if (spec.tensor >= 0) {
    return results_[sample].status.ok() && (wanted_tensors_[sample] & TensorBit(spec.tensor)) != 0;
  }
  return results_[sample].status.ok() && (spec.is_for_all || tasks_[sample]->return_scores);
}

NamedOutput& OutputCollector::Add(size_t sample, const Spec& spec) {
  return results_[sample].outputs.emplace_back(
      NamedOutput{.name = std::string(spec.name), .dtype = spec.dtype, .columns = spec.columns});
}

absl::Status OutputCollector::Reserve(size_t sample, int64_t bytes) {
  MemoryBudget* const budget = memory_->budget();
  if (budget == nullptr) return absl::OkStatus();
  std::shared_ptr<MemoryBudget::Reservation>& held = results_[sample].memory;
  absl::Status status;
  if (held != nullptr) {
    status = held->Resize(held->bytes() + bytes);
  } else if (auto reserved = budget->Reserve(MemoryBudget::Use::kScratch, bytes); reserved.ok()) {
    held = std::make_shared<MemoryBudget::Reservation>(*std::move(reserved));
  } else {
    status = reserved.status();
  }
  if (!status.ok()) memory_->NoteRefusal(status);
  return status;
}

absl::StatusOr<char*> OutputCollector::AddRows(size_t sample, const Spec& spec) {
  const int64_t num_bytes = num_answers_[sample] * spec.row_bytes();
  RETURN_IF_ERROR(Reserve(sample, num_bytes));
  std::string& bytes = spec.tensor >= 0 ? NewTensor(sample, spec).bytes : Add(sample, spec).bytes;
  bytes.resize(static_cast<size_t>(num_bytes));
  return bytes.data();
}

void OutputCollector::AddBoxes(size_t sample, const Spec& spec, const float* rows, int64_t pitch) {
  std::string& bytes = Add(sample, spec).bytes;
  // Without voxels, the image holds only the head's biases: boxes from those would be no objects.
  if (results_[sample].counts.voxels == 0) return;
  for (int64_t i = 0; i < spec.rows_per_sample; ++i) {
    const float* const row = rows + i * pitch;
    if (row[kernels::kBoxScore] == kernels::kNoBox) continue;
    bytes.append(reinterpret_cast<const char*>(row), static_cast<size_t>(spec.row_bytes()));
  }
}

OutputTensor& OutputCollector::NewTensor(size_t sample, const Spec& spec) {
  return results_[sample].tensors.emplace_back(OutputTensor{.info = tensors_[static_cast<size_t>(spec.tensor)]});
}

absl::Status OutputCollector::AddTensorRows(OutputTensor& tensor, size_t sample, const kernels::ConstRows& rows) {
  RETURN_IF_ERROR(Reserve(sample, rows.capacity * tensor.row_bytes()));
  const auto row_bytes = static_cast<size_t>(tensor.row_bytes());
  if (rows.pitch == rows.channels) {
    tensor.bytes.assign(static_cast<const char*>(rows.data), static_cast<size_t>(rows.capacity) * row_bytes);
    return absl::OkStatus();
  }
  tensor.bytes.reserve(static_cast<size_t>(rows.capacity) * row_bytes);
  for (int64_t row = 0; row < rows.capacity; ++row) {
    tensor.bytes.append(reinterpret_cast<const char*>(rows.floats(row)), row_bytes);
  }
  return absl::OkStatus();
}

absl::Status OutputCollector::AddTensor(size_t sample, const Spec& spec, const kernels::ConstRows& rows) {
  return AddTensorRows(NewTensor(sample, spec), sample, rows);
}

absl::Status OutputCollector::AddCoordinates(OutputTensor& tensor, size_t sample, absl::Span<const uint64_t> keys,
                                             KeyOrder order) {
  const size_t num_bytes = keys.size() * static_cast<size_t>(dimension_) * sizeof(int32_t);
  RETURN_IF_ERROR(Reserve(sample, static_cast<int64_t>(num_bytes)));
  tensor.coordinates.resize(num_bytes);
  char* out = tensor.coordinates.data();
  const kernels::CoordinateKey canonical(dimension_);
  for (const uint64_t key : keys) {
    const kernels::Axes coordinate =
        order == KeyOrder::kMorton ? kernels::UnpackMorton(dimension_, key) : canonical.Unpack(key);
    const size_t coordinate_bytes = static_cast<size_t>(dimension_) * sizeof(int32_t);
    std::memcpy(out, coordinate.data(), coordinate_bytes);
    out += coordinate_bytes;
  }
  return absl::OkStatus();
}

absl::Status OutputCollector::AddSites(size_t sample, const Spec& spec, const kernels::ConstRows& rows,
                                       const uint64_t* keys, const int64_t* sample_begin, KeyOrder order) {
  const int64_t begin = sample_begin[sample], end = sample_begin[sample + 1];
  OutputTensor& tensor = NewTensor(sample, spec);
  RETURN_IF_ERROR(AddTensorRows(tensor, sample, rows.RowRange(begin, end)));
  return AddCoordinates(tensor, sample, {keys + begin, static_cast<size_t>(end - begin)}, order);
}

absl::Status OutputCollector::ConvertTensors() {
  for (size_t i = 0; i < num_samples(); ++i) {
    if (tasks_[i]->tensor_dtype != DType::kFloat16) continue;
    for (OutputTensor& tensor : results_[i].tensors) {
      const auto held_bytes = static_cast<int64_t>(tensor.bytes.size());
      RETURN_IF_ERROR(Reserve(i, held_bytes / 2));
      tensor.bytes = Float16Bytes(tensor.bytes);
      tensor.dtype = DType::kFloat16;
      RETURN_IF_ERROR(Reserve(i, -held_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace voxserve
