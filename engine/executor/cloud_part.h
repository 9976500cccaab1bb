#pragma once

// One cloud of a task, as it is read: a task brings one, or several sweeps that count as one.

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tensor/infer_task.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

struct CloudPart {
  const PointCloud* cloud = nullptr;
  const PlacedSweep* placed = nullptr;  // the sweep whose cloud it is; null: none
  bool is_moved = false;                // by placed->transform
  std::string_view age_feature = {};    // "": none

  int64_t num_points() const { return static_cast<int64_t>(cloud->num_points()); }
};

// In the order of the sample's points. The parts refer to the task.
std::vector<CloudPart> PartsOf(const InferTask& task);

}  // namespace voxserve
