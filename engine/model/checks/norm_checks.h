#pragma once

// Checks of norms by the statistics of each sample.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckInstanceNorm(NodeContext& context);
void CheckGroupNorm(NodeContext& context);

}  // namespace voxserve
