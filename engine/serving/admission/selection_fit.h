#pragma once

// SelectionFit estimates the time that one device needs for the farthest point sampling that a batch's requests ask
// for: each such request selects some points of its cloud, and the selection is called a sample. A model version has
// one SelectionFit per device (ServedModel::OnDevice), beside the LatencyFit of its network.
//
// - Time: t = a + b * sampled points + c * selected points + d * samples, with LineFit's rules for forgetting, outliers
//   and range. Sampled points are all points of the clouds from which points are selected. The time grows with the
//   numbers of sampled and of selected points, not with their product: points are sorted once, and each selection reads
//   only the few buckets of points that it can change (kernels/points/farthest/farthest_point_sample.h). On two cores
//   100,000 points take 4.6 ms for 16 selected points and 25 ms for 4,096.
// - Measurement: the measured time is a batch's device time, multiplied by the share of Stage::kSample in the times of
//   the batch's stages.
// - Threads: thread-safe.

#include "absl/time/time.h"
#include "engine/serving/admission/line_fit.h"
#include "engine/serving/admission/work_size.h"

namespace voxserve {

class SelectionFit {
 public:
  // Learns from the samples of a batch. Ignores a batch without samples, and a time that is not positive and finite.
  void Observe(const WorkSize& load, absl::Duration device_time);

  // Returns the expected device time of the load's samples, run in this many batches; zero without samples, and before
  // the first observation.
  absl::Duration Expected(const WorkSize& load, int64_t batches = 1) const;
  // Returns a time that about 99 of 100 batches do not exceed (LineFit::Bound).
  absl::Duration Bound(const WorkSize& load, int64_t batches = 1) const;
  // Returns true if the load has no samples, or if samples of such sizes were observed.
  bool Knows(const WorkSize& load) const;

  // Copies `other`, the fit of the model version that this one replaces.
  void StartAs(const SelectionFit& other) { fit_.StartAs(other.fit_); }

 private:
  LineFit fit_;  // BatchSize: points are sampled points, voxels are selected points, requests are samples
};

}  // namespace voxserve
