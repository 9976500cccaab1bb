#pragma once

// Checks of sparse convolutions, and the placing of convolutions and pools: which sites they read and make, and through
// which rulebook.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckSparseConv(NodeContext& context);

// Both place a convolution or pool: they set the node's level, and the op's rulebook and sites. False where these are
// not known, which is a problem unless there was one before.
bool PlaceOnNewSites(const GraphNode& input, SparseConvOp* op, NodeContext& context);
// On the sites that its partner (paired_with) has read.
bool PlaceInverse(const GraphNode& input, SparseConvOp* op, NodeContext& context);

}  // namespace voxserve
