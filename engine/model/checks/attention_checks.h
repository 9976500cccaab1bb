#pragma once

// These functions check attention within samples, and the learned rows (sample_rows) that such a network may begin
// with.

#include "engine/model/checks/node_context.h"

namespace voxserve {

void CheckSampleRows(NodeContext& context);
void CheckAttention(NodeContext& context);

}  // namespace voxserve
