#pragma once

// LatencyFit estimates the device time of a batch of one model version on one device. A version owns one for each
// device (ServedModel::OnDevice); LatencyModel predicts by them. A LatencyFit learns from batches when they end.
//
// - Buckets: batches are grouped by their number of points; a bucket reaches from one power of two to the next. Each
//   bucket has a line (LineFit). Plans, capacities of buffers and bottlenecks of kernels change with the size: one line
//   for all sizes is off by 10% to 14%, one line for each bucket by 3%.
// - Common line: one more line learns from every batch. A bucket's line starts as a copy of the common line. It starts
//   so again if none of the last 256 batches was in the bucket. When the common line forgets its earlier batches,
//   because the times have changed (LineFit::Observe), every bucket starts anew.
// - The common line estimates the voxels, and says which sizes are known (Knows). It also predicts a batch whose bucket
//   has no line, or whose size the bucket's line does not know.
// - Threads: thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/serving/admission/line_fit.h"

namespace voxserve {

class LatencyFit {
 public:
  // These methods do the same as LineFit's methods of the same names (line_fit.h describes them).
  void Observe(const BatchSize& size, absl::Duration device_time, LineFit::Voxels voxels = LineFit::Voxels::kEstimated);
  void ObserveVoxels(int64_t points, int64_t voxels) { all_.ObserveVoxels(points, voxels); }
  absl::Duration Expected(const BatchSize& size) const;
  bool Knows(const BatchSize& size) const { return all_.Knows(size); }
  absl::Duration Bound(const BatchSize& size) const;
  int64_t EstimateVoxels(int64_t points) const { return all_.EstimateVoxels(points); }
  double voxels_per_point() const { return all_.voxels_per_point(); }

  // Copies the common line of `other`, which belongs to the version that this version replaces. The buckets start anew.
  void StartAs(const LatencyFit& other);

  // Returns the size of batches that have not run yet, with the voxels estimated from the points.
  BatchSize EstimateSize(int64_t points, int64_t requests, int64_t batches = 1) const {
    return {.points = points, .voxels = EstimateVoxels(points), .requests = requests, .batches = batches};
  }

 private:
  struct Bucket {
    std::unique_ptr<LineFit> line;  // null: the bucket has had no batch
    int64_t last_batch = 0;         // num_batches_ when the bucket had its last batch
  };

  // Returns the index of the bucket for `size`, which follows from the mean points per batch.
  static size_t IndexOf(const BatchSize& size);
  bool IsFresh(const Bucket& bucket) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  const LineFit& LineOf(const BatchSize& size) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  LineFit all_;
  mutable absl::Mutex mutex_;
  std::array<Bucket, 64> buckets_ ABSL_GUARDED_BY(mutex_);  // index: how many bits the number of points has
  int64_t num_batches_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace voxserve
