#include "engine/serving/admission/selection_fit.h"

#include <algorithm>

namespace voxserve {
namespace {

BatchSize SizeOf(const WorkSize& load, int64_t batches = 1) {
  return {.points = load.sampled_points,
          .voxels = load.selected_points,
          .requests = load.selections,
          .batches = std::min(batches, load.selections)};
}

}  // namespace

void SelectionFit::Observe(const WorkSize& load, absl::Duration device_time) {
  fit_.Observe(SizeOf(load), device_time, LineFit::Voxels::kKnownBefore);
}

absl::Duration SelectionFit::Expected(const WorkSize& load, int64_t batches) const {
  return load.selections == 0 ? absl::ZeroDuration() : fit_.Expected(SizeOf(load, batches));
}

absl::Duration SelectionFit::Bound(const WorkSize& load, int64_t batches) const {
  return load.selections == 0 ? absl::ZeroDuration() : fit_.Bound(SizeOf(load, batches));
}

bool SelectionFit::Knows(const WorkSize& load) const { return load.selections == 0 || fit_.Knows(SizeOf(load)); }

}  // namespace voxserve
