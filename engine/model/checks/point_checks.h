#pragma once

// These functions check the operators on rows of points, and those between points and voxels.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckPointFeatures(NodeContext& context);
void CheckPointOffsets(NodeContext& context);
void CheckPointToVoxel(NodeContext& context);
void CheckVoxelToPoint(NodeContext& context);
void CheckDevoxelize(NodeContext& context);

}  // namespace voxserve
