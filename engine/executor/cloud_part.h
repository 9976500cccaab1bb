#pragma once

// CloudPart is one cloud of a task, for the executors that read it. A task brings one cloud, or several sweeps that are
// read as one sample.

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tensor/infer_task.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

struct CloudPart {
  const PointCloud* cloud = nullptr;
  const PlacedSweep* placed = nullptr;  // the sweep that owns `cloud`; null: it is the task's own cloud
  bool is_moved = false;                // the reader transforms its points by placed->transform
  std::string_view age_feature = {};    // the feature that gets the sweep's age; "": none

  int64_t num_points() const { return static_cast<int64_t>(cloud->num_points()); }
};

// Returns the task's clouds in the order of the sample's points. The parts refer to the task.
std::vector<CloudPart> PartsOf(const InferTask& task);

}  // namespace voxserve
