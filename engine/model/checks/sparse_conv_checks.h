#pragma once

// These functions check sparse convolutions, and place convolutions and pools: to place one is to find the level of its
// output sites, and the rulebook between its input and output sites (levels.h).

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckSparseConv(NodeContext& context);

// Places a convolution or pool on the new output sites that op->sites makes. Sets the node's level and op->rulebook.
// Returns false if they cannot be determined, and reports a problem unless the cause was reported before.
bool PlaceOnNewSites(const GraphNode& input, SparseConvOp* op, NodeContext& context);
// Places an inverse convolution or pool on the input sites of its partner (paired_with). Sets the node's level, and
// takes the rulebook, sites and stored_cells of the partner. Returns false and reports as PlaceOnNewSites does.
bool PlaceInverse(const GraphNode& input, SparseConvOp* op, NodeContext& context);

}  // namespace voxserve
