#include "engine/compiler/point_steps.h"

#include <algorithm>
#include <memory>

#include "engine/ops/points/devoxelize.h"
#include "engine/ops/points/point_to_voxel.h"

namespace voxserve {
namespace {

// weights: as DevoxelizeStep has them.
void PushDevoxelize(int index, const BufferSlice& weights, StepEmitter& emitter) {
  emitter.Push(index,
               std::make_unique<DevoxelizeStep>(DevoxelizeStep::Options{.in = emitter.TouchInput(index),
                                                                        .out = emitter.Touch(index),
                                                                        .weights = weights,
                                                                        .epilogue = emitter.TakeEpilogue(index)}));
}

}  // namespace

void EmitPointToVoxel(const PointToVoxelOp& op, int index, StepEmitter& emitter) {
  const GraphNode& node = emitter.FirstNode(emitter.At(index));
  const int position_level = emitter.Node(node.inputs[0]).level;
  const int key_level = std::max(position_level, 0);  // points are where their voxels are
  if (position_level >= 0 || node.level != 0) {
    emitter.AddKeyLevel(key_level);
    emitter.AddKeyLevel(node.level);
  }
  emitter.Push(index, std::make_unique<PointToVoxelStep>(PointToVoxelStep::Options{
                          .in = emitter.TouchInput(index),
                          .out = emitter.Touch(index),
                          .reduce = op.reduce,
                          .dimension = emitter.graph().dimension,
                          .position_level = position_level,
                          .level = node.level,
                          .ratio = *emitter.graph().levels.RatioBetween(key_level, node.level)}));
}

void EmitDevoxelize(int index, StepEmitter& emitter) {
  const GraphNode& node = emitter.FirstNode(emitter.At(index));
  const bool is_of_points = std::holds_alternative<VoxelizeOp>(emitter.Node(node.inputs[1]).op);
  const BufferSlice weights =
      emitter.WeightsOf(is_of_points ? kPointLevel : node.level, emitter.Node(node.inputs[0]).level, emitter.At(index));
  PushDevoxelize(index, emitter.buffers().Touch(weights), emitter);
}

void EmitVoxelToPoint(int index, StepEmitter& emitter) {
  if (emitter.layers().IsMadeByAnswer(emitter.At(index).result_node)) return;
  PushDevoxelize(index, /*weights=*/{}, emitter);
}

}  // namespace voxserve
