#include "engine/compiler/compiler.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "engine/compiler/buffer_layout.h"
#include "engine/compiler/buffer_placement.h"
#include "engine/compiler/int8_types.h"
#include "engine/compiler/layer_fusion.h"
#include "engine/compiler/layers.h"
#include "engine/compiler/operators.h"
#include "engine/compiler/product_merging.h"
#include "engine/compiler/segments.h"
#include "engine/compiler/step_emitter.h"

namespace voxserve {
namespace {

// Extends the life of the scores that decide about a segment's levels until these levels are made.
void UseScoreBuffers(const Layers& layers, const Segments& segments, int segment, BufferLayout& buffers,
                     Program& program) {
  const std::vector<CoordinateLevel>& levels = layers.graph().levels.levels();
  for (size_t level = 0; level < levels.size(); ++level) {
    const int score = layers.ScoreOf(levels[level]);
    if (score >= 0 && segments.OfLevel(static_cast<int>(level)) == segment)
      program.scores[level] = buffers.UseBuffer(score);
  }
}

// Appends the value of the layer that was emitted last. first_step: the layer's first step. A concatenation whose
// inputs are all written in place has no step: the last of its inputs completes it.
void AddValue(const Layers& layers, int index, int first_step, const BufferLayout& buffers, Program& program) {
  const Layer& layer = layers.At(index);
  const GraphNode& node = layers.Node(layer.result_node);
  if (node.is_labels || node.is_selection || node.max_boxes > 0) return;
  int step = static_cast<int>(program.steps.size()) - 1;
  if (step < first_step) {
    if (!std::holds_alternative<ConcatOp>(node.op)) return;
    const std::vector<int> inputs = layers.InputsOf(layer);
    step = -1;
    for (const ProgramValue& value : program.values) {
      const int of_value = layers.LayerOf(value.node);
      if (std::find(inputs.begin(), inputs.end(), of_value) != inputs.end()) step = std::max(step, value.step);
    }
  }
  program.values.push_back({.node = layer.result_node,
                            .slice = buffers.SliceOf(index),
                            .step = step,
                            .is_for_all = layer.is_for_all,
                            .is_for_scores = layer.is_for_scores,
                            .for_tensors = layer.for_tensors});
}

// Copies the program's properties from the graph and the target.
void Describe(const Graph& graph, const Plan& plan, const CompileTarget& target, Program& program) {
  program.dimension = graph.dimension;
  program.voxelize = graph.voxelize_op();
  program.levels = graph.levels.levels();
  program.default_plans = PlanTable(program, {{.plan = plan}});
  program.allow_tf32 = target.allow_tf32;
  program.is_deterministic = target.is_deterministic;
  program.num_classes = graph.num_classes;
  program.has_labels = graph.labels_output >= 0;
  program.has_scores = graph.scores_output >= 0;
  program.has_boxes = graph.boxes_output >= 0;
  program.has_velocities = graph.has_velocities;
}

}  // namespace

Program Compile(const Graph& graph, const Plan& plan, const CompileTarget& target) {
  Program program;
  Layers layers(graph);
  Int8Types int8_types = target.is_int8 ? Int8Types(layers, target) : Int8Types();
  const auto is_int8_product = [&](int layer) { return int8_types.Multiplies(layer); };
  const bool is_in_16_bits = target.on_cuda && target.dtype != DType::kFloat32;
  if (target.fuses_mlps) FuseMlps(is_int8_product, layers);
  FuseNorms(layers);
  if (target.is_int8) {
    FuseShortcuts([&](int conv, int shortcut) { return int8_types.MayShareSums(conv, shortcut); }, layers);
  } else if (is_in_16_bits) {
    FuseShortcuts([](int, int) { return true; }, layers);
    FuseConvNorms(layers);
  }
  if (is_in_16_bits && target.rotates_products) FuseRotaries(is_int8_product, layers);
  int8_types.FindStored();
  if (target.merges_products && (target.on_cuda || !target.is_int8)) MergeProducts(is_int8_product, layers);
  const Segments segments(layers);
  program.segments.resize(static_cast<size_t>(segments.size()));
  program.scores.resize(graph.levels.levels().size());
  program.label_dtype = target.bytes_per_label == 1 ? DType::kUint8 : DType::kUint16;
  BufferLayout buffers(target, program.label_dtype, int8_types, layers, program);
  StepEmitter emitter(target, int8_types, layers, buffers, program);
  const auto emit_layers = [&](const auto& is_wanted) {
    for (int layer = 0; layer < layers.size() && !target.stop.stop_requested(); ++layer) {
      if (!is_wanted(layers.At(layer))) continue;
      const int first_step = static_cast<int>(program.steps.size());
      EmitLayer(layer, emitter);
      if (target.on_cuda) continue;
      AddValue(layers, layer, first_step, buffers, program);
      const int second = layers.At(layer).second_norm;
      if (second >= 0) AddValue(layers, second, first_step, buffers, program);
    }
  };
  // Steps are emitted in the order in which they run, the head last: the life of a buffer is a range of step numbers.
  for (int segment = 0; segment < segments.size(); ++segment) {
    program.segments[static_cast<size_t>(segment)].first_step = static_cast<int>(program.steps.size());
    emit_layers([&](const Layer& layer) { return !layers.IsHead(layer.first_node) && layer.segment == segment; });
    UseScoreBuffers(layers, segments, segment + 1, buffers, program);
    program.segments[static_cast<size_t>(segment)].end_step = static_cast<int>(program.steps.size());
  }
  program.first_head_step = static_cast<int>(program.steps.size());
  emit_layers([&](const Layer& layer) { return layers.IsHead(layer.first_node); });
  if (target.stop.stop_requested()) return program;
  emitter.EmitOutputs();
  program.segments.back().end_step = static_cast<int>(program.steps.size());
  segments.Fill(emitter.sample_levels(), program);
  Describe(graph, plan, target, program);
  program.sample_bytes = BytesOfSamples(program, /*num_samples=*/1, target.on_cuda);
  return program;
}

}  // namespace voxserve
