#pragma once

// This file emits the steps that bring values to other sites: inputs of concatenations and sums on the union of their
// sites, and operators that keep a part of their input's sites. index: the layer's.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"
#include "engine/ops/step.h"

namespace voxserve {

// Gives every site of `out` its row of `in`, or 0 where `in` lacks the site. It is a pooling over one cell. rulebook:
// index in the graph.
void EmitSameSites(int index, int rulebook, const BufferSlice& in, const BufferSlice& out, StepEmitter& emitter);

// Copies the inputs of a concatenation that were not written in place.
void EmitConcatCopies(const ConcatOp& op, int index, StepEmitter& emitter);

// Adds two values on the union of their sites.
void EmitUnionAdd(const AddOp& op, int index, StepEmitter& emitter);

}  // namespace voxserve
