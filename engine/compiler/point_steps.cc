// What moves between points and sites.

#include <algorithm>

#include "engine/compiler/step_emitter.h"
#include "engine/ops/points/devoxelize.h"
#include "engine/ops/points/point_to_voxel.h"

namespace voxserve {

void StepEmitter::EmitPointToVoxel(const PointToVoxelOp& op, int index) {
  const GraphNode& node = FirstNode(At(index));
  const int position_level = Node(node.inputs[0]).level;
  const int key_level = std::max(position_level, 0);  // points are where their voxels are
  if (position_level >= 0 || node.level != 0) {
    AddKeyLevel(key_level);
    AddKeyLevel(node.level);
  }
  Push(At(index), std::make_unique<PointToVoxelStep>(
                      PointToVoxelStep::Options{.in = TouchInput(index),
                                                .out = Touch(index),
                                                .reduce = op.reduce,
                                                .dimension = graph_.dimension,
                                                .position_level = position_level,
                                                .level = node.level,
                                                .ratio = *graph_.levels.RatioBetween(key_level, node.level)}));
}

void StepEmitter::EmitDevoxelize(int index) {
  const GraphNode& node = FirstNode(At(index));
  const bool is_of_points = std::holds_alternative<VoxelizeOp>(Node(node.inputs[1]).op);
  const BufferSlice weights = WeightsOf(is_of_points ? kPointLevel : node.level, Node(node.inputs[0]).level, At(index));
  PushDevoxelize(index, buffers_.Touch(weights));
}

void StepEmitter::PushDevoxelize(int index, const BufferSlice& weights) {
  Push(At(index),
       std::make_unique<DevoxelizeStep>(DevoxelizeStep::Options{
           .in = TouchInput(index), .out = Touch(index), .weights = weights, .epilogue = TakeEpilogue(At(index))}));
}

BufferSlice StepEmitter::WeightsOf(int position_level, int level, const Layer& reader) {
  const auto [found, is_new] = weights_of_.try_emplace({position_level, level});
  InterpolationWeights& made = found->second;
  if (is_new) {
    const VoxelizeOp& voxelize = graph_.voxelize_op();
    const bool is_of_points = position_level == kPointLevel;
    AddKeyLevel(is_of_points ? 0 : position_level);
    AddKeyLevel(level);
    made.slice = buffers_.Add({.level = position_level, .channels = 2 << graph_.dimension});
    InterpolationWeightsStep::Options options{
        .out = buffers_.Touch(made.slice),
        .dimension = graph_.dimension,
        .position_level = position_level,
        .level = level,
        .ratio = *graph_.levels.RatioBetween(is_of_points ? 0 : position_level, level),
        .rounding = voxelize.rounding,
        .voxel_size = voxelize.voxel_size};
    if (voxelize.origin == kernels::VoxelOrigin::kRange) options.shift = voxelize.range_min;
    Push(reader, std::make_unique<InterpolationWeightsStep>(options));
    made.step = program_.steps.back().get();
  }
  made.step->is_for_all |= reader.is_for_all;
  made.step->is_for_scores |= reader.is_for_scores;
  return made.slice;
}

}  // namespace voxserve
