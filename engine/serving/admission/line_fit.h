#pragma once

// LineFit learns a line from batches as they end: t = a + b * points + c * voxels + d * requests. LatencyFit has one
// for all batches of a model version on a device and one per bucket of sizes; SampleFit has one for farthest points.
//
// - Time: t is device time. Batches that run side by side share their device and each is charged its share
//   (DeviceLoad), so a batch that ran alone teaches about one among others, and the other way round.
// - Fit: least squares over the last batches, each counting 0.9 times as much as the next; coefficients are 0 or more.
//   Where the batches are too alike to tell a coefficient (all of one size, say), it keeps its ratio to the others.
// - Outliers: a batch far off its expected time counts as if it had been off by 2 times. The second in a row that is
//   far off in the same direction is believed, and all batches before it are forgotten. So a change of clocks, plans or
//   host load is followed within two batches.
// - Range: requests beyond 4 times the largest seen are expected to take as long as that size: small requests say
//   nothing of large ones, which are let in until one has shown its time.
// - Threads: thread-safe.

#include <array>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

// The size of one batch, or of several that run one after the other.
struct BatchSize {
  int64_t points = 0;
  int64_t voxels = 0;
  int64_t requests = 0;
  int64_t batches = 1;
};

class LineFit {
 public:
  enum class Voxels {
    kEstimated,    // before the batch ran, from its points; the estimate learns from them
    kNotTypical,   // likewise, but of points that were chosen: the estimate does not learn from them
    kKnownBefore,  // before the batch ran
  };

  // Learns from one batch that has run. Passes over what is no measurement: no request, or a time that is not positive
  // and finite.
  // Returns true if the batch was the second surprise: all batches before the two are forgotten.
  bool Observe(const BatchSize& size, absl::Duration device_time, Voxels voxels = Voxels::kEstimated);

  // Learns from a batch that ran in parts: its time says nothing of its size.
  void ObserveVoxels(int64_t points, int64_t voxels);

  // Copies the fit of the version that this one's version replaces.
  void StartAs(const LineFit& other);

  // Returns the expected device time; zero before the first observation, when nothing is known and everything is
  // admitted.
  absl::Duration Expected(const BatchSize& size) const;
  // Returns true if batches were observed that tell of this size: its requests are no more than 4 times as large.
  bool Knows(const BatchSize& size) const;
  // Returns the device time that 99 of 100 batches of the size keep within: Expected times the second largest ratio of
  // actual to expected time among the last 128 batches, 1 to 2.5; 1.25 or more while there are few.
  absl::Duration Bound(const BatchSize& size) const;

  // Estimates voxels from above: `points` times the 95th percentile of the voxels per point over the last 64 batches;
  // one voxel a point before the first.
  int64_t EstimateVoxels(int64_t points) const;
  double voxels_per_point() const;  // the percentile

 private:
  static constexpr size_t kNumCoefficients = 4;
  using Vector = std::array<double, kNumCoefficients>;

  struct Observation {
    Vector size{};       // 1, points, voxels, requests
    double seconds = 0;  // as it was
    double counted = 0;  // as the fit takes it
  };

  double Predict(const BatchSize& size) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // ratio: of actual to expected time. Returns what Observe does.
  bool Believe(Observation observation, double ratio) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
