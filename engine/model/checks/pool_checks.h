#pragma once

// These functions check pooling, local and over whole samples, and broadcast.

#include <optional>

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckPool(NodeContext& context);
void CheckGlobalPool(NodeContext& context);
void CheckBroadcast(NodeContext& context);

// Returns nullopt and reports a problem at `at` if `reduce` is not set, unknown or REDUCE_GENERALISED_MEAN, which only
// global_pool may have.
std::optional<kernels::PoolReduce> ReadReduce(model::v1::Pool::Reduce reduce, const ProblemsAt& at);

}  // namespace voxserve
