#pragma once

// Checks of rows of points, and of the ways between points and voxels.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckPointFeatures(NodeContext& context);
void CheckPointOffsets(NodeContext& context);
void CheckPointToVoxel(NodeContext& context);
void CheckVoxelToPoint(NodeContext& context);
void CheckDevoxelize(NodeContext& context);

}  // namespace voxserve
