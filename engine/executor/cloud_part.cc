#include "engine/executor/cloud_part.h"

namespace voxserve {

std::vector<CloudPart> PartsOf(const InferTask& task) {
  if (task.sweeps.empty()) return {{.cloud = &task.cloud}};
  std::vector<CloudPart> parts;
  for (const PlacedSweep& placed : task.sweeps) {
    parts.push_back({.cloud = &placed.sweep->cloud,
                     .placed = &placed,
                     .is_moved = !parts.empty(),
                     .age_feature = task.age_feature});
  }
  return parts;
}

}  // namespace voxserve
