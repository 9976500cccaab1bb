#pragma once

// LineFit predicts the device time t of a batch by a line, t = a + b * points + c * voxels + d * requests, which it
// learns from batches when they end. LatencyFit has a LineFit for all batches of a model version on a device, and one
// for each bucket of sizes. SelectionFit has a LineFit for farthest point sampling.
//
// - Time: t is device time, in seconds. Batches that run side by side share their device, and each is charged its share
//   (DeviceLoad). So the same line fits a batch that ran alone and a batch that ran beside others.
// - Fit: the line is fitted by least squares to the last 32 batches, each weighted 0.9 times as much as the next;
//   coefficients are 0 or more. If the batches are too alike to determine a coefficient (all are of one size, say), the
//   coefficient's ratio to the others stays.
// - Outliers: a batch whose time is more than 2 times, or less than half of, the expected time counts as if it had been
//   off by a factor of 2. If the next batch is an outlier in the same direction, both count in full and all batches
//   before the two are forgotten. So a change of clocks, plans or host load is learned within two batches.
// - Range: a request with more than 4 times the points or voxels of the largest observed request is expected to take as
//   long as one with 4 times. Small requests say nothing about large ones. So a large request is not refused for a time
//   that nothing has shown yet.
// - Threads: thread-safe.

#include <array>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

// The size of one batch, or the total size of several batches that run one after the other.
struct BatchSize {
  int64_t points = 0;
  int64_t voxels = 0;
  int64_t requests = 0;
  int64_t batches = 1;
};

class LineFit {
 public:
  enum class Voxels {
    kEstimated,    // the voxels were not known before the batch ran; EstimateVoxels learns from this batch
    kNotTypical,   // not known before either; EstimateVoxels does not learn, since the batch's points were selected
    kKnownBefore,  // the voxels were known before the batch ran
  };

  // Learns from one batch that has run. voxels: how the batch's voxels became known. Ignores a batch without requests,
  // and a time that is not positive and finite. Returns true if the batch was the second outlier in a row in the same
  // direction, so that all batches before the two were forgotten.
  bool Observe(const BatchSize& size, absl::Duration device_time, Voxels voxels = Voxels::kEstimated);

  // Learns only the voxels per point, not the time. This is for a batch that ran in parts, since its time says nothing
  // about one batch of that size.
  void ObserveVoxels(int64_t points, int64_t voxels);

  // Copies the fit of the version that this version replaces.
  void StartAs(const LineFit& other);

  // Returns the expected device time. It is zero before the first observation, so that no request is refused for its
  // predicted time.
  absl::Duration Expected(const BatchSize& size) const;
  // Returns true if the fit holds for this size: the points and the voxels per request are each at most 4 times the
  // largest observed ones. False before the first observation.
  bool Knows(const BatchSize& size) const;
  // Returns a time that about 99 of 100 batches of the size do not exceed: Expected, multiplied by the second largest
  // ratio of actual to expected time among the last 128 batches. This factor is at least 1 and at most 2.5. With fewer
  // than 16 ratios it is at least 1.25.
  absl::Duration Bound(const BatchSize& size) const;

  // Returns an upper estimate of the voxels: `points` times the 95th percentile of the voxels per point over the last
  // 64 batches. Before the first batch it is one voxel per point.
  int64_t EstimateVoxels(int64_t points) const;
  double voxels_per_point() const;  // the percentile that EstimateVoxels uses

 private:
  static constexpr size_t kNumCoefficients = 4;
  using Vector = std::array<double, kNumCoefficients>;

  struct Observation {
    Vector size{};       // 1, points, voxels, requests
    double seconds = 0;  // measured
    double counted = 0;  // the time that the fit uses; bounded for an outlier
  };

  double Predict(const BatchSize& size) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Adds an observation and fits the line. After the second outlier in a row in the same direction, forgets the
  // observations before the two and returns true. ratio: actual to expected time.
  bool AddObservation(Observation observation, double ratio) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateRatio(double ratio) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateLargest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateVoxels(double voxels_per_point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  bool is_seeded_ ABSL_GUARDED_BY(mutex_) = false;
  Vector coefficients_ ABSL_GUARDED_BY(mutex_){};                 // seconds per batch, point, voxel, request
  std::deque<Observation> observations_ ABSL_GUARDED_BY(mutex_);  // oldest first
  Vector largest_ ABSL_GUARDED_BY(mutex_){};                      // the most points and voxels per request observed
  int outlier_sign_ ABSL_GUARDED_BY(mutex_) = 0;  // the last batch was an outlier: 1 slower, -1 faster; 0: no outlier
  std::deque<double> ratios_ ABSL_GUARDED_BY(mutex_);     // actual to expected time; oldest first
  std::deque<double> densities_ ABSL_GUARDED_BY(mutex_);  // voxels per point; oldest first
  double bound_ratio_ ABSL_GUARDED_BY(mutex_) = 1;
  double voxels_per_point_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace voxserve
