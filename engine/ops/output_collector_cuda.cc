#include <cuda_runtime_api.h>

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/ops/output_collector.h"
#include "engine/ops/step.h"
#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status OutputCollector::Queue(const StepContext& context, const Spec& spec, int64_t num_rows) {
  const int64_t bytes = num_rows * spec.row_bytes();
  if (bytes > 0) {
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(next_host_rows(), next_rows(), static_cast<size_t>(bytes),
                                         cudaMemcpyDeviceToHost, context.stream()));
  }
  AddWritten(spec, num_rows);
  return absl::OkStatus();
}

void OutputCollector::AddWritten(const Spec& spec, int64_t num_rows) {
  queued_.push_back({.spec = spec, .rows = next_host_rows(), .num_rows = num_rows});
  queued_bytes_ += AlignedBytes(num_rows * spec.row_bytes());
}

void OutputCollector::SetQueued(std::vector<Queued> queued) {
  queued_ = std::move(queued);
  queued_bytes_ = 0;
}

absl::Status OutputCollector::QueueSites(const StepContext& context, const Spec& spec, int64_t num_rows,
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

}  // namespace voxserve
