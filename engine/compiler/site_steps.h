#pragma once

// These functions emit the steps that bring values to other sites: inputs of concatenations and additions on the union
// of their sites, and operators that keep a part of their input's sites. index: the layer's index in Layers.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"
#include "engine/ops/step.h"

namespace voxserve {

// Emits a step that gives every site of `out` its row of `in`, or 0 where `in` lacks the site. The step is a pooling
// with a kernel of one cell. rulebook: index in the graph's rulebooks.
void EmitSameSites(int index, int rulebook, const BufferSlice& in, const BufferSlice& out, StepEmitter& emitter);

// Emits the steps that copy the inputs of a concatenation that are not written in place.
void EmitConcatCopies(const ConcatOp& op, int index, StepEmitter& emitter);

// Emits the steps that add two values on the union of their sites.
void EmitUnionAdd(const AddOp& op, int index, StepEmitter& emitter);

}  // namespace voxserve
