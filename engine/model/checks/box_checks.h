#pragma once

// These functions check the operators of detection: heads that decode boxes, and non-maximum suppression.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckCenterHeadDecode(NodeContext& context);
void CheckAnchorHeadDecode(NodeContext& context);
void CheckNms(NodeContext& context);

}  // namespace voxserve
