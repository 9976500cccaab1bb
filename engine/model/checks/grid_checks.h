#pragma once

// These functions check the operators of dense grids: sites to cells and back, convolutions and pools of images.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckToDense(NodeContext& context);
void CheckToBev(NodeContext& context);
void CheckFromDense(NodeContext& context);
void CheckConv2d(NodeContext& context);
void CheckConvTranspose2d(NodeContext& context);
void CheckMaxPool2d(NodeContext& context);

}  // namespace voxserve
