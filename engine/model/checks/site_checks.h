#pragma once

// Checks of nodes whose sites are made of other nodes' sites: unions, crops, prunes.

#include <vector>

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckCrop(NodeContext& context);
void CheckPrune(NodeContext& context);

// Returns all inputs of an addition or concatenation; the node has its rows then, and rulebooks are those of AddOp.
// Empty, and a problem unless there was one before, where the inputs cannot meet.
std::vector<const GraphNode*> MeetInputs(model::v1::Sites sites, std::vector<int>* rulebooks, NodeContext& context);

}  // namespace voxserve
