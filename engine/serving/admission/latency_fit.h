#pragma once

// LatencyFit estimates how long a batch of one model version takes one device. It is the part of LatencyModel that a
// version owns (ServedModel::latency), and learns from the batches as they end.
//
// - Buckets: batches are told apart by their points, from one power of two to the next, as SiteForecast does. Each
//   bucket has a line (LineFit): plans, capacities and what bounds a kernel change with the size, and one line through
//   all sizes is off by 10% to 14% where lines by bucket are off by 3%.
// - All: one more line learns from every batch. A bucket begins as that line, and again where it has not been seen for
//   long; where that line forgets, since times have changed, every bucket begins again.
// - Voxels and range are those of all batches.
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
  // As LineFit's.
  void Observe(const BatchSize& size, absl::Duration device_time, LineFit::Voxels voxels = LineFit::Voxels::kEstimated);
  void ObserveVoxels(int64_t points, int64_t voxels) { all_.ObserveVoxels(points, voxels); }
  absl::Duration Expected(const BatchSize& size) const;
  bool Knows(const BatchSize& size) const { return all_.Knows(size); }
  absl::Duration Bound(const BatchSize& size) const;
  int64_t EstimateVoxels(int64_t points) const { return all_.EstimateVoxels(points); }
  double voxels_per_point() const { return all_.voxels_per_point(); }

  // Copies the fit of the version that this one's version replaces; its buckets begin anew.
  void StartAs(const LatencyFit& other);

  // Returns the size of batches that have not run: their voxels are estimated.
  BatchSize EstimateSize(int64_t points, int64_t requests, int64_t batches = 1) const {
    return {.points = points, .voxels = EstimateVoxels(points), .requests = requests, .batches = batches};
  }

 private:
  struct Bucket {
    std::unique_ptr<LineFit> line;  // null: no batch yet
    int64_t last_batch = 0;         // number of the last batch
  };

  // By the size of one of the batches.
  static size_t IndexOf(const BatchSize& size);
  bool IsFresh(const Bucket& bucket) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  const LineFit& LineOf(const BatchSize& size) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  LineFit all_;
  mutable absl::Mutex mutex_;
  std::array<Bucket, 64> buckets_ ABSL_GUARDED_BY(mutex_);  // by the bits of the number of points
  int64_t num_batches_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace voxserve
