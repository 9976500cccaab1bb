#pragma once

// These functions check sparse convolutions. They also place convolutions and pools: they find the sites that these
// read and make, and the rulebook between them.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckSparseConv(NodeContext& context);

// Both place a convolution or pool: they set the node's level, and the op's rulebook and sites. They return false where
// these cannot be known, and report a problem unless there was one before.
bool PlaceOnNewSites(const GraphNode& input, SparseConvOp* op, NodeContext& context);
// Places it on the input sites of its partner (paired_with).
bool PlaceInverse(const GraphNode& input, SparseConvOp* op, NodeContext& context);

}  // namespace voxserve
