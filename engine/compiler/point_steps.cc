#include <algorithm>
#include <cstddef>
#include <memory>

#include "engine/compiler/steps.h"
#include "engine/ops/points/devoxelize.h"
#include "engine/ops/points/point_offsets.h"
#include "engine/ops/points/point_to_voxel.h"

namespace voxserve {
namespace {

// weights: as DevoxelizeStep::Options defines them.
void PushDevoxelize(int index, const BufferSlice& weights, StepEmitter& emitter) {
  emitter.Push(index,
               std::make_unique<DevoxelizeStep>(DevoxelizeStep::Options{.in = emitter.UseInputBuffer(index),
                                                                        .out = emitter.UseBuffer(index),
                                                                        .weights = weights,
                                                                        .epilogue = emitter.TakeEpilogue(index)}));
}

}  // namespace

void EmitPointToVoxel(const PointToVoxelOp& op, int index, StepEmitter& emitter) {
  const GraphNode& node = emitter.FirstNode(emitter.At(index));
  const int position_level = emitter.Node(node.inputs[0]).level;
  const int key_level = std::max(position_level, 0);  // points have the positions of their voxels, level 0
  if (position_level >= 0 || node.level != 0) {
    emitter.AddKeyLevel(key_level);
    emitter.AddKeyLevel(node.level);
  }
  emitter.Push(index, std::make_unique<PointToVoxelStep>(PointToVoxelStep::Options{
                          .in = emitter.UseInputBuffer(index),
                          .out = emitter.UseBuffer(index),
                          .reduce = op.reduce,
                          .max_points = op.max_points,
                          .empty_slots = op.has_empty_slots ? emitter.UseInputBuffer(index, 1) : BufferSlice(),
                          .dimension = emitter.graph().dimension,
                          .position_level = position_level,
                          .level = node.level,
                          .ratio = *emitter.graph().levels.RatioBetween(key_level, node.level)}));
}

void EmitPointOffsets(const PointOffsetsOp& op, int index, StepEmitter& emitter) {
  const VoxelizeOp& voxelize = emitter.graph().voxelize_op();
  PointOffsetsStep::Options options{.out = emitter.UseBuffer(index),
                                    .dimension = emitter.graph().dimension,
                                    .is_from_mean = op.is_from_mean,
                                    .max_points = op.max_points,
                                    .voxel_size = voxelize.voxel_size};
  if (!op.is_from_mean) emitter.AddKeyLevel(0);
  for (size_t axis = 0; axis < options.first_center.size(); ++axis) {
    const bool is_floor = voxelize.rounding == kernels::VoxelRounding::kFloor;
    const bool is_of_range = voxelize.origin == kernels::VoxelOrigin::kRange;
    options.first_center[axis] = static_cast<float>((is_floor ? double{voxelize.voxel_size[axis]} / 2 : 0.0) +
                                                    (is_of_range ? double{voxelize.range_min[axis]} : 0.0));
  }
  emitter.Push(index, std::make_unique<PointOffsetsStep>(options));
}

void EmitDevoxelize(int index, StepEmitter& emitter) {
  const GraphNode& node = emitter.FirstNode(emitter.At(index));
  const bool is_of_points = std::holds_alternative<VoxelizeOp>(emitter.Node(node.inputs[1]).op);
  const BufferSlice weights =
      emitter.WeightsOf(is_of_points ? kPointLevel : node.level, emitter.Node(node.inputs[0]).level, emitter.At(index));
  PushDevoxelize(index, emitter.buffers().UseBuffer(weights), emitter);
}

void EmitVoxelToPoint(int index, StepEmitter& emitter) {
  if (emitter.layers().IsMadeByAnswer(emitter.At(index).result_node)) return;
  PushDevoxelize(index, /*weights=*/{}, emitter);
}

}  // namespace voxserve
