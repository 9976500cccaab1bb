#pragma once

// These functions check operators that make sites from other nodes' sites: unions, crops, prunes.

#include <vector>

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckCrop(NodeContext& context);
void CheckPrune(NodeContext& context);

// Returns all inputs of an addition or concatenation, and sets the node's rows and `rulebooks` (AddOp::rulebooks). If
// the inputs cannot be combined, returns an empty list, and reports a problem unless it was reported before.
std::vector<const GraphNode*> MeetInputs(model::v1::Sites sites, std::vector<int>* rulebooks, NodeContext& context);

}  // namespace voxserve
