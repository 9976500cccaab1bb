#pragma once

// These functions check the norms that use each sample's own statistics.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckInstanceNorm(NodeContext& context);
void CheckGroupNorm(NodeContext& context);

}  // namespace voxserve
