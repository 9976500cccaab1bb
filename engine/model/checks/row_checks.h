#pragma once

// Checks of operators that compute each row on its own and are no layer with an epilogue.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckMultiply(NodeContext& context);
void CheckSoftmax(NodeContext& context);
void CheckLayerNorm(NodeContext& context);
void CheckL2Norm(NodeContext& context);
void CheckPRelu(NodeContext& context);
void CheckEmbedding(NodeContext& context);

}  // namespace voxserve
