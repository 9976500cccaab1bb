#include "engine/serving/admission/batch_costs.h"

#include <algorithm>

#include "kernels/coordinates/coordinate_key.h"

namespace voxserve {

BatchLimits::BatchLimits(const ServedModel& model, size_t device, int64_t max_bytes) {
  const ModelConfig::Batching& batching = model.batching;
  const double voxels_per_point = model.latency[device]->voxels_per_point();
  const MemoryModel& memory = *model.memory[device];
  const int64_t wanted = std::clamp(batching.max_batch_requests, 1, static_cast<int>(kernels::kMaxSamples));
  max_requests = static_cast<int>(memory.MaxRequests(max_bytes, wanted));
  max_points = std::min(batching.max_batch_points, memory.MaxPoints(max_bytes, voxels_per_point, max_requests));
  if (batching.max_batch_voxels > 0 && voxels_per_point > 0) {
    const double points = static_cast<double>(batching.max_batch_voxels) / voxels_per_point;
    if (points < static_cast<double>(max_points)) max_points = static_cast<int64_t>(points);
  }
}

int64_t BatchLimits::RequestsPerBatch(int64_t points, int64_t requests) const {
  const int64_t mean = std::max<int64_t>(1, points / requests);
  return std::clamp<int64_t>(max_points / mean, 1, max_requests);
}

}  // namespace voxserve
