#pragma once

// This function emits the steps of detection: decoders of boxes, and non-maximum suppression. index: the layer's index
// in Layers.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"

namespace voxserve {

// Emits an nms, and before the nms those of its input decoders that were not emitted yet. These decoders of CenterPoint
// heads become one step for all heads on images, and one step for all heads on the sites of one level.
void EmitNms(const NmsOp& op, int index, StepEmitter& emitter);

}  // namespace voxserve
