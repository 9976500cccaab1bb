#pragma once

// Checks of pooling, local and over whole samples, and of its way back.

#include <optional>

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckPool(NodeContext& context);
void CheckGlobalPool(NodeContext& context);
void CheckBroadcast(NodeContext& context);

// Empty, and a problem that `at` reports for the node, where it is none.
std::optional<kernels::PoolReduce> ReadReduce(model::v1::Pool::Reduce reduce, const ProblemsAt& at);

}  // namespace voxserve
