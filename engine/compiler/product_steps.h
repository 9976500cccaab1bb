#pragma once

// These functions emit the steps that compute matrix products: sparse convolutions, linear layers and convolutions of
// images. index: the layer's index in Layers.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"

namespace voxserve {

void EmitSparseConv(const SparseConvOp& conv, int index, StepEmitter& emitter);
void EmitLinear(int index, StepEmitter& emitter);
// Merged convolutions (conv2d_merging.h) get their common step when the first of them is emitted.
void EmitConv2d(const Conv2dOp& op, int index, StepEmitter& emitter);

// If the linear layer that an argmax reads can write labels itself, has the argmax do without the layer's values: the
// layer's step then runs only in batches in which something else needs the values.
void EmitArgmax(int index, StepEmitter& emitter);

}  // namespace voxserve
