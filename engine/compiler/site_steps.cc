#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engine/compiler/steps.h"
#include "engine/ops/rows/pool.h"
#include "engine/ops/rows/scale_shift.h"

namespace voxserve {

void EmitSameSites(int index, int rulebook, const BufferSlice& in, const BufferSlice& out, StepEmitter& emitter) {
  const int walked =
      emitter.FindOrAdd({.spec = emitter.graph().levels.rulebooks()[static_cast<size_t>(rulebook)], .first_conv = -1});
  emitter.program().rulebooks[static_cast<size_t>(walked)].is_pooled = true;
  emitter.Push(index, std::make_unique<PoolStep>(PoolStep::Options{
                          .in = in, .out = out, .rulebook = walked, .reduce = kernels::PoolReduce::kSum}));
}

void EmitConcatCopies(const ConcatOp& op, int index, StepEmitter& emitter) {
  const GraphNode& concat = emitter.FirstNode(emitter.At(index));
  int32_t column = 0;
  for (size_t i = 0; i < concat.inputs.size(); ++i) {
    const int node = concat.inputs[i];
    const Layer& input = emitter.At(emitter.layers().LayerOf(node));
    const int32_t channels = emitter.Node(node).channels;
    if (input.stored_in != index || input.column != column) {
      const int of_input = emitter.layers().LayerOf(node);
      ScaleShiftStep::Options copy{.in = emitter.UseInputBuffer(index, i), .out = emitter.UseBuffer(index)};
      copy.out.column += column;
      copy.out.channels = channels;
      if (op.rulebooks.empty() && (IsInt8(emitter.DTypeOf(copy.in)) || IsInt8(emitter.DTypeOf(copy.out)))) {
        emitter.Push(index, MakeInt8Conversion(copy.in, copy.out, of_input, emitter));
      } else if (emitter.Node(node).HasRowsOf(concat)) {
        emitter.Push(index, std::make_unique<ScaleShiftStep>(std::move(copy)));
      } else {
        EmitSameSites(index, op.rulebooks[i], copy.in, copy.out, emitter);
      }
    }
    column += channels;
  }
}

void EmitUnionAdd(const AddOp& op, int index, StepEmitter& emitter) {
  const GraphNode& add = emitter.FirstNode(emitter.At(index));
  BufferSlice sides[2];
  for (size_t i = 0; i < 2; ++i) {
    if (emitter.Node(add.inputs[i]).HasRowsOf(add)) continue;
    const BufferSlice in = emitter.UseInputBuffer(index, i);
    Buffer moved = emitter.program().buffers[static_cast<size_t>(in.buffer)];
    moved.level = add.level;
    moved.channels = in.channels;
    sides[i] = emitter.buffers().UseBuffer(emitter.buffers().Add(moved));
    EmitSameSites(index, op.rulebooks[i], in, sides[i], emitter);
  }
  for (size_t i = 0; i < 2; ++i) {
    sides[i] = sides[i].buffer < 0 ? emitter.UseInputBuffer(index, i) : emitter.buffers().UseBuffer(sides[i]);
  }
  FusedEpilogue epilogue = emitter.TakeEpilogue(index);
  epilogue.residual = sides[1];
  emitter.Push(index, std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{
                          .in = sides[0], .out = emitter.UseBuffer(index), .epilogue = std::move(epilogue)}));
}

}  // namespace voxserve
