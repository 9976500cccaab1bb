#pragma once

// SampleFit estimates how long the farthest points that a batch's requests ask for take one device. A model version has
// one per device (ServedModel::sampling), beside the LineFit of its network.
//
// - Time: t = a + b * sampled points + c * selected points + d * samples, by LineFit's rules for forgetting,
// outliers
//   and range. It grows with both and not with their product: points are sorted once, and each selection looks at the
//   few buckets that it can change (kernels/points/farthest/farthest_point_sample.h). On two cores 100,000 points take
//   4.6 ms for 16 of them and 25 ms for 4,096.
// - Measurement: a batch's device time, by the share of Stage::kSample in its stages.
// - Threads: thread-safe.

#include "absl/time/time.h"
#include "engine/serving/admission/line_fit.h"
#include "engine/serving/admission/load.h"

namespace voxserve {

class SampleFit {
 public:
  // Learns from the samples of a batch. Passes over what is no measurement: no sample, or a time that is not positive
  // and finite.
  void Observe(const Load& load, absl::Duration device_time);

  // Returns the expected device time of the load's samples, in so many batches; zero where there is none, and before
  // the first observation.
  absl::Duration Expected(const Load& load, int64_t batches = 1) const;
  // Returns the time that 99 of 100 keep within (LineFit::Bound).
  absl::Duration Bound(const Load& load, int64_t batches = 1) const;
  // Returns true if the load has no samples, or if samples of such sizes were observed.
  bool Knows(const Load& load) const;

  // Copies the fit of the version that this one's version replaces.
  void StartAs(const SampleFit& other) { fit_.StartAs(other.fit_); }

 private:
  LineFit fit_;  // of sampled points, as its points, and selected ones, as its voxels
};

}  // namespace voxserve
