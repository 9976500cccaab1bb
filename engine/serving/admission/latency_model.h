#pragma once

// How long a batch of a model takes a device: t = a + b * points + c * voxels + d * requests, fitted to the batches as
// they end. Of one model version on one device.
//
// t is device time: batches that run side by side on one device share it, and each is charged its share
// (DeviceLoad). So what is learnt from a batch that ran alone holds for one among others, and the other way round.
//
// The fit is least squares over the last batches, each counting 0.9 times as much as the next, with coefficients of 0
// or more. Where batches are too alike to tell a coefficient (all of one size, say), it stays as it was relative to the
// others. One batch far off what was expected is counted as if it had been off by 2 times; the second in a row that is
// far off in the same direction is believed, and all before them forgotten: a change of clocks, plans or load on the
// host is followed within two batches.
//
// Requests of a few points say nothing of large ones: those beyond 4 times the largest seen are expected to take as
// long as that, and are let in until one has shown how long they take.
//
// Thread-safe.

#include <array>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

// Of one batch, or of several that run one after the other.
struct BatchSize {
  int64_t points = 0;
  int64_t voxels = 0;
  int64_t requests = 0;
  int64_t batches = 1;
};

class LatencyModel {
 public:
  // Of one batch that has run. What is no measurement (no request, a time that is not positive and finite) is passed
  // over.
  void Observe(const BatchSize& size, absl::Duration device_time);

  // Of a batch whose time says nothing of its size: it ran in parts.
  void ObserveVoxels(int64_t points, int64_t voxels);

  // As another one is: of the version that this one's replaces.
  void StartAs(const LatencyModel& other);

  // Zero before the first observation: nothing is known, and everything is admitted.
  absl::Duration Expected(const BatchSize& size) const;
  // What 99 of 100 batches of the size keep within: Expected times the second largest ratio of actual to expected
  // time among the last 128 batches, 1 to 2.5; one of 1.25 or more while there are few.
  absl::Duration Bound(const BatchSize& size) const;
  // Expected from above: the 95th percentile of the voxels of a point, over the last 64 batches; one voxel a point
  // before the first.
  int64_t EstimateVoxels(int64_t points) const;
  double voxels_per_point() const;  // that it goes by

 private:
  static constexpr size_t kNumCoefficients = 4;
  using Vector = std::array<double, kNumCoefficients>;

  struct Observation {
    Vector size{};       // 1, points, voxels, requests
    double seconds = 0;  // as it was
    double counted = 0;  // as the fit takes it
  };

  double Predict(const BatchSize& size) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // ratio: of actual to expected time.
  void Believe(Observation observation, double ratio) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateRatio(double ratio) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateLargest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateVoxels(double voxels_per_point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  bool is_seeded_ ABSL_GUARDED_BY(mutex_) = false;
  Vector coefficients_ ABSL_GUARDED_BY(mutex_){};                 // seconds: a batch, a point, a voxel, a request
  std::deque<Observation> observations_ ABSL_GUARDED_BY(mutex_);  // oldest first
  Vector largest_ ABSL_GUARDED_BY(mutex_){};                      // points and voxels of a request among them
  int surprise_ ABSL_GUARDED_BY(mutex_) = 0;  // the last batch was far off: 1 slower, -1 quicker; 0: it was not
  std::deque<double> ratios_ ABSL_GUARDED_BY(mutex_);     // actual to expected; oldest first, as the next
  std::deque<double> densities_ ABSL_GUARDED_BY(mutex_);  // voxels of a point
  double bound_ratio_ ABSL_GUARDED_BY(mutex_) = 1;
  double voxels_per_point_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace voxserve
