#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/ops/cuda_output_collector.h"
#include "engine/ops/step.h"
#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

void CudaOutputCollector::SetNotFinite(char* host_counts) {
  auto* const counts = reinterpret_cast<uint32_t*>(host_counts);
  std::fill_n(counts, 2 * num_samples(), 0u);
  OutputCollector::SetNotFinite(counts);
}

void CudaOutputCollector::SetMemory(char* device_rows, char* host_rows) {
  device_rows_ = device_rows;
  host_rows_ = host_rows;
}

absl::Status CudaOutputCollector::Queue(const StepContext& context, const Spec& spec, int64_t num_rows) {
  const int64_t bytes = num_rows * spec.row_bytes();
  if (bytes > 0) {
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(next_host_rows(), next_rows(), static_cast<size_t>(bytes),
                                         cudaMemcpyDeviceToHost, context.stream()));
  }
  AddWritten(spec, num_rows);
  return absl::OkStatus();
}

void CudaOutputCollector::AddWritten(const Spec& spec, int64_t num_rows) {
  queued_.push_back({.spec = spec, .rows = next_host_rows(), .num_rows = num_rows});
  queued_bytes_ += AlignedBytes(num_rows * spec.row_bytes());
}

void CudaOutputCollector::SetQueued(std::vector<Queued> queued) {
  queued_ = std::move(queued);
  queued_bytes_ = 0;
}

absl::Status CudaOutputCollector::QueueSites(const StepContext& context, const Spec& spec, int64_t num_rows,
                                             const uint64_t* keys, const int64_t* sample_begin) {
  RETURN_IF_ERROR(Queue(context, spec, num_rows));
  const auto copy = [&](const auto* values, int64_t count, const auto** copied) -> absl::Status {
    char* const to = host_rows_ + queued_bytes_;
    const int64_t bytes = count * static_cast<int64_t>(sizeof(*values));
    if (bytes > 0) {
      RETURN_IF_CUDA_ERROR(
          cudaMemcpyAsync(to, values, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, context.stream()));
    }
    *copied = reinterpret_cast<decltype(values)>(to);
    queued_bytes_ += AlignedBytes(bytes);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(copy(keys, num_rows, &queued_.back().keys));
  return copy(sample_begin, static_cast<int64_t>(num_samples()) + 1, &queued_.back().sample_begin);
}

absl::Status CudaOutputCollector::Distribute() {
  for (const Queued& queued : queued_) {
    const Spec& spec = queued.spec;
    const auto packed =
        kernels::ConstRows::Packed(queued.rows, spec.dtype, queued.num_rows, static_cast<int32_t>(spec.columns));
    if (queued.keys != nullptr) {
      for (size_t i = 0; i < num_samples(); ++i) {
        if (!IsWanted(i, spec)) continue;
        RETURN_IF_ERROR(AddSites(i, spec, packed, queued.keys, queued.sample_begin, KeyOrder::kMorton));
      }
      continue;
    }
    const char* rows = queued.rows;
    for (size_t i = 0; i < num_samples(); ++i) {
      const bool is_tensor = spec.tensor >= 0;
      const int64_t num_rows = spec.rows_per_sample > 0 ? spec.rows_per_sample : num_answers(i);
      const int64_t bytes = num_rows * spec.row_bytes();
      const char* const own_rows = std::exchange(rows, rows + bytes);
      if (!IsWanted(i, spec)) continue;
      if (is_tensor) {
        const int64_t begin = (own_rows - queued.rows) / spec.row_bytes();
        RETURN_IF_ERROR(AddTensor(i, spec, packed.RowRange(begin, begin + num_rows)));
      } else if (spec.rows_per_sample > 0) {
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
