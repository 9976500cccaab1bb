#pragma once

// Steps that move rows between points and sites. index: of the layer.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"

namespace voxserve {

void EmitPointOffsets(const PointOffsetsOp& op, int index, StepEmitter& emitter);
void EmitPointToVoxel(const PointToVoxelOp& op, int index, StepEmitter& emitter);
void EmitDevoxelize(int index, StepEmitter& emitter);
// Nothing where the answer copies the rows.
void EmitVoxelToPoint(int index, StepEmitter& emitter);

}  // namespace voxserve
