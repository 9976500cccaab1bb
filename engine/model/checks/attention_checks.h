#pragma once

// Checks of attention within samples, and of the learned rows that it may begin with.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckSampleRows(NodeContext& context);
void CheckAttention(NodeContext& context);

}  // namespace voxserve
