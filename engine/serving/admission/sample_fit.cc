#include "engine/serving/admission/sample_fit.h"

#include <algorithm>

namespace voxserve {
namespace {

BatchSize SizeOf(const Load& load, int64_t batches = 1) {
  return {.points = load.sampled_points,
          .voxels = load.selected_points,
          .requests = load.samples,
          .batches = std::min(batches, load.samples)};
}

}  // namespace

void SampleFit::Observe(const Load& load, absl::Duration device_time) {
  fit_.Observe(SizeOf(load), device_time, LineFit::Voxels::kKnownBefore);
}

absl::Duration SampleFit::Expected(const Load& load, int64_t batches) const {
  return load.samples == 0 ? absl::ZeroDuration() : fit_.Expected(SizeOf(load, batches));
}

absl::Duration SampleFit::Bound(const Load& load, int64_t batches) const {
  return load.samples == 0 ? absl::ZeroDuration() : fit_.Bound(SizeOf(load, batches));
}

bool SampleFit::Knows(const Load& load) const { return load.samples == 0 || fit_.Knows(SizeOf(load)); }

}  // namespace voxserve
