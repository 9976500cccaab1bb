#include "engine/executor/sample_input.h"

namespace voxserve {

std::vector<CloudPart> PartsOf(const SampleInput& input) {
  if (input.sweeps.empty()) return {{.cloud = input.cloud}};
  std::vector<CloudPart> parts;
  for (const PlacedSweep& placed : input.sweeps) {
    parts.push_back({.cloud = &placed.sweep->cloud,
                     .placed = &placed,
                     .is_moved = !parts.empty(),
                     .age_feature = input.age_feature});
  }
  return parts;
}

}  // namespace voxserve
