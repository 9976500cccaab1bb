#pragma once

// These functions emit the steps that move rows between points and sites. index: the layer's index in Layers.

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"

namespace voxserve {

void EmitPointOffsets(const PointOffsetsOp& op, int index, StepEmitter& emitter);
void EmitPointToVoxel(const PointToVoxelOp& op, int index, StepEmitter& emitter);
void EmitDevoxelize(int index, StepEmitter& emitter);
// Emits nothing where the output step copies the rows (Layers::IsMadeByAnswer).
void EmitVoxelToPoint(int index, StepEmitter& emitter);

}  // namespace voxserve
