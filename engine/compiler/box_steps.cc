#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/compiler/steps.h"
#include "engine/ops/boxes/decode_boxes.h"
#include "engine/ops/boxes/nms.h"
#include "engine/ops/boxes/query_decode.h"

namespace voxserve {
namespace {

// Returns the level of the sites that a decoder reads; kSampleLevel: it reads images.
int LevelOf(int decoder, const StepEmitter& emitter) { return emitter.Node(emitter.Node(decoder).inputs[0]).level; }

// decoders: all read images, or all read the sites of one level.
void EmitCenterHeads(const std::vector<int>& decoders, StepEmitter& emitter) {
  static_assert(kernels::kMaxNmsInputs <= kernels::kMaxCenterHeads);
  std::vector<DecodeCenterHeadsStep::Head> heads;
  for (const int node : decoders) {
    const auto& op = std::get<CenterHeadDecodeOp>(emitter.Node(node).op);
    const auto image = [&](size_t input) { return emitter.UseBufferFor(node, emitter.Node(node).inputs[input]); };
    heads.push_back({.parameters = op.head,
                     .images = {.heatmap = image(0),
                                .center = image(1),
                                .height = image(2),
                                .dim = image(3),
                                .rot = image(4),
                                .vel = op.has_velocity ? image(5) : BufferSlice(),
                                .iou = op.has_iou ? image(op.has_velocity ? 6 : 5) : BufferSlice()},
                     .out = emitter.UseNodeBuffer(node)});
  }
  std::optional<DecodeCenterHeadsStep::Sites> sites;
  if (const int level = LevelOf(decoders[0], emitter); level != kSampleLevel) {
    emitter.AddKeyLevel(level);
    sites = {.level = level, .grid = kernels::SiteGrid::FromAbove(emitter.ShapeOf(level))};
  }
  emitter.Push(emitter.layers().LayerOf(decoders[0]), std::make_unique<DecodeCenterHeadsStep>(std::move(heads), sites));
}

void EmitAnchorHead(const AnchorHeadDecodeOp& op, int node, StepEmitter& emitter) {
  const std::vector<int>& images = emitter.Node(node).inputs;
  emitter.Push(emitter.layers().LayerOf(node), std::make_unique<DecodeAnchorHeadStep>(DecodeAnchorHeadStep::Options{
                                                   .parameters = op.head,
                                                   .scores = emitter.UseBufferFor(node, images[0]),
                                                   .residuals = emitter.UseBufferFor(node, images[1]),
                                                   .directions = emitter.UseBufferFor(node, images[2]),
                                                   .out = emitter.UseNodeBuffer(node)}));
}

}  // namespace

void EmitQueryDecode(const QueryDecodeOp& op, int index, StepEmitter& emitter) {
  const auto input = [&](size_t at) { return emitter.UseInputBuffer(index, at); };
  emitter.Push(index, std::make_unique<QueryDecodeStep>(
                          QueryDecodeStep::Options{.parameters = op.head,
                                                   .selection = input(0),
                                                   .heatmap = input(1),
                                                   .center = input(2),
                                                   .height = input(3),
                                                   .dim = input(4),
                                                   .rot = input(5),
                                                   .vel = op.has_velocity ? input(6) : BufferSlice(),
                                                   .out = emitter.UseBuffer(index)}));
}

void EmitNms(const NmsOp& op, int index, StepEmitter& emitter) {
  const std::vector<int>& inputs = emitter.FirstNode(emitter.At(index)).inputs;
  std::map<int, std::vector<int>> center_heads;  // by LevelOf
  for (const int node : inputs) {
    if (!emitter.buffers().IsUsed(emitter.layers().LayerOf(node)) &&
        std::holds_alternative<CenterHeadDecodeOp>(emitter.Node(node).op)) {
      center_heads[LevelOf(node, emitter)].push_back(node);
      emitter.UseNodeBuffer(node);  // so that IsUsed skips it from now on
    }
  }
  for (const auto& [level, decoders] : center_heads) EmitCenterHeads(decoders, emitter);
  for (const int node : inputs) {
    if (emitter.buffers().IsUsed(emitter.layers().LayerOf(node))) continue;
    const auto* const anchors = std::get_if<AnchorHeadDecodeOp>(&emitter.Node(node).op);
    if (anchors != nullptr) EmitAnchorHead(*anchors, node, emitter);
  }
  NmsStep::Options options{.out = emitter.UseBuffer(index),
                           .iou_threshold = op.iou_threshold,
                           .max_boxes_in = op.max_boxes_in,
                           .max_boxes_out = op.max_boxes_out,
                           .classes = op.classes};
  for (const int node : inputs) options.in.push_back(emitter.UseNodeBuffer(node));
  emitter.Push(index, std::make_unique<NmsStep>(std::move(options)));
}

}  // namespace voxserve
