#pragma once

// Steps that bring values to other sites: the inputs of concatenations and sums on the union of their sites, and what
// keeps a part of its input's sites. index: of the layer.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"
#include "engine/ops/step.h"

namespace voxserve {

// Every site of `out` gets its row of `in`, or 0 where there is none: the sum over one cell. rulebook: of the graph.
void EmitSameSites(int index, int rulebook, const BufferSlice& in, const BufferSlice& out, StepEmitter& emitter);

// Copies the inputs of a concatenation that were not written in place.
void EmitConcatCopies(const ConcatOp& op, int index, StepEmitter& emitter);

// Adds two values on the union of their sites.
void EmitUnionAdd(const AddOp& op, int index, StepEmitter& emitter);

}  // namespace voxserve
