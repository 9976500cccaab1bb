#pragma once

// These functions check the network's input: the voxelize node, and the farthest_point_sample node that it may read.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckVoxelize(NodeContext& context);
void CheckFarthestPointSample(NodeContext& context);

}  // namespace voxserve
