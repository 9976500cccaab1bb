#pragma once

// Steps of detection: boxes of images, thinned. index: of the layer.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"

namespace voxserve {

// Decoders run before the first nms that reads them; CenterPoint's heads are decoded together, those of images in one
// step and those of a level's sites in another.
void EmitNms(const NmsOp& op, int index, StepEmitter& emitter);

}  // namespace voxserve
