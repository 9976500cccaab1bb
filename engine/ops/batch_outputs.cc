#include "engine/ops/batch_outputs.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "kernels/boxes/box_rows.h"

namespace voxserve {

BatchOutputs::BatchOutputs(BatchTasks tasks, const std::vector<int64_t>& point_begin, absl::Span<InferResult> results,
                           HostMemory* memory)
    : tasks_(tasks),
      results_(results),
      memory_(memory),
      not_finite_on_cpu_(2 * tasks.size()),
      not_finite_(not_finite_on_cpu_.data()) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    // A sample that failed has no points.
    num_answers_.push_back(point_begin[i] == point_begin[i + 1] ? 0 : tasks[i]->num_answers());
  }
}

int64_t BatchOutputs::num_answers() const {
  return std::accumulate(num_answers_.begin(), num_answers_.end(), int64_t{0});
}

void BatchOutputs::SetNotFinite(char* host_counts) {
  not_finite_ = reinterpret_cast<uint32_t*>(host_counts);
  std::fill_n(not_finite_, 2 * num_samples(), 0u);
}

void BatchOutputs::TakeNotFinite() {
  for (size_t i = 0; i < num_samples(); ++i) {
    results_[i].counts.not_finite = not_finite_points()[i];
    results_[i].num_not_finite_boxes = not_finite_boxes()[i];
  }
}

bool BatchOutputs::IsWanted(size_t sample, const Spec& spec) const {
  return results_[sample].status.ok() && (spec.is_for_all || tasks_[sample]->return_scores);
}

void BatchOutputs::SetMemory(char* device_rows, char* host_rows) {
  device_rows_ = device_rows;
  host_rows_ = host_rows;
}

NamedOutput& BatchOutputs::Add(size_t sample, const Spec& spec) {
  return results_[sample].outputs.emplace_back(
      NamedOutput{.name = std::string(spec.name), .dtype = spec.dtype, .columns = spec.columns});
}

absl::Status BatchOutputs::Reserve(size_t sample, int64_t bytes) {
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

absl::StatusOr<char*> BatchOutputs::AddRows(size_t sample, const Spec& spec) {
  const int64_t num_bytes = num_answers_[sample] * spec.row_bytes();
  RETURN_IF_ERROR(Reserve(sample, num_bytes));
  std::string& bytes = Add(sample, spec).bytes;
  bytes.resize(static_cast<size_t>(num_bytes));
  return bytes.data();
}

void BatchOutputs::AddBoxes(size_t sample, const Spec& spec, const float* rows, int64_t pitch) {
  std::string& bytes = Add(sample, spec).bytes;
  // An empty image has a head's biases in it, which are no objects.
  if (results_[sample].counts.voxels == 0) return;
  for (int64_t i = 0; i < spec.rows_per_sample; ++i) {
    const float* const row = rows + i * pitch;
    if (row[kernels::kBoxScore] == kernels::kNoBox) continue;
    bytes.append(reinterpret_cast<const char*>(row), static_cast<size_t>(spec.row_bytes()));
  }
}

absl::Status BatchOutputs::Distribute() {
  for (const Queued& queued : queued_) {
    const Spec& spec = queued.spec;
    const char* rows = queued.rows;
    for (size_t i = 0; i < num_samples(); ++i) {
      const bool is_boxes = spec.rows_per_sample > 0;
      const int64_t bytes = (is_boxes ? spec.rows_per_sample : num_answers_[i]) * spec.row_bytes();
      const char* const own_rows = std::exchange(rows, rows + bytes);
      if (!IsWanted(i, spec)) continue;
      if (is_boxes) {
        AddBoxes(i, spec, reinterpret_cast<const float*>(own_rows), spec.columns);
      } else {
        RETURN_IF_ERROR(Reserve(i, bytes));
        Add(i, spec).bytes.assign(own_rows, static_cast<size_t>(bytes));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace voxserve
