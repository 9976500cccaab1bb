#pragma once

// Checks of detection: heads that decode boxes, and the suppression of their boxes.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckCenterHeadDecode(NodeContext& context);
void CheckAnchorHeadDecode(NodeContext& context);
void CheckNms(NodeContext& context);

}  // namespace voxserve
