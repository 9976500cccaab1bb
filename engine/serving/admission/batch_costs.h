#pragma once

// What a batch of a model costs on a device, and how large one may be there.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/memory_model.h"
#include "engine/serving/admission/served_model.h"

namespace voxserve {

// Bytes of a device's memory that a batch may take there now.
using MaxBatchBytes = std::function<int64_t(size_t device)>;
inline int64_t NoLimitOfBytes(size_t /*device*/) { return MemoryModel::kNoLimit; }

// How large a batch of several requests may be. A budget of voxels or bytes is one of points, at so many voxels and
// bytes a point as LatencyModel and MemoryModel estimate from above.
struct BatchLimits {
  BatchLimits(const ServedModel& model, size_t device, int64_t max_bytes);

  // Of clouds that have so many points on average, 1 or more.
  int64_t RequestsPerBatch(int64_t points, int64_t requests) const;

  int64_t max_points = 0;
  int max_requests = 0;
};

// Device time, of one batch or of several that run one after the other.
class BatchCosts {
 public:
  BatchCosts(const ServedModel& model, size_t device) : latency_(*model.latency[device]) {}

  absl::Duration Expected(int64_t points, int64_t requests, int64_t batches = 1) const {
    return latency_.Expected(SizeOf(points, requests, batches));
  }
  absl::Duration Bound(int64_t points, int64_t requests, int64_t batches = 1) const {
    return latency_.Bound(SizeOf(points, requests, batches));
  }

 private:
  BatchSize SizeOf(int64_t points, int64_t requests, int64_t batches) const {
    return {.points = points, .voxels = latency_.EstimateVoxels(points), .requests = requests, .batches = batches};
  }

  const LatencyModel& latency_;
};

}  // namespace voxserve
