#pragma once

// This file emits the steps of detection: decoders of boxes, and non-maximum suppression. index: the layer's.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"

namespace voxserve {

// Emits an nms, and before it the decoders that it reads and that were not emitted yet. CenterPoint's heads are decoded
// together: one step for all heads on images, and one for all heads on the sites of a level.
void EmitNms(const NmsOp& op, int index, StepEmitter& emitter);

}  // namespace voxserve
