#pragma once

// These functions check operators that compute each row on its own and run as steps of their own: nothing is fused into
// them.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckMultiply(NodeContext& context);
void CheckSoftmax(NodeContext& context);
void CheckLayerNorm(NodeContext& context);
void CheckL2Norm(NodeContext& context);
void CheckPRelu(NodeContext& context);
void CheckEmbedding(NodeContext& context);

}  // namespace voxserve
