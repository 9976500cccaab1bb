#pragma once

// These functions check sparse convolutions, and place convolutions and pools: to place one is to find the level of its
// output sites, and the rulebook between its input and output sites (levels.h).

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckSparseConv(NodeContext& context);

// Places a convolution or pool on new output sites. Like PlaceInverse, it sets the node's level and the op's rulebook
// and sites. Both return false if these cannot be determined, and report a problem unless the cause was reported
// before.
bool PlaceOnNewSites(const GraphNode& input, SparseConvOp* op, NodeContext& context);
// Places an inverse convolution or pool on the input sites of its partner (paired_with).
bool PlaceInverse(const GraphNode& input, SparseConvOp* op, NodeContext& context);

}  // namespace voxserve
