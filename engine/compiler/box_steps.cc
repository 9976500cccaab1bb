// Detection: boxes of images, thinned.

#include "engine/compiler/step_emitter.h"
#include "engine/ops/boxes/decode_boxes.h"
#include "engine/ops/boxes/nms.h"

namespace voxserve {

// Decoders run before the first nms that reads them; CenterPoint's heads are decoded together.
void StepEmitter::EmitNms(const NmsOp& op, int index) {
  const std::vector<int>& inputs = FirstNode(At(index)).inputs;
  std::vector<int> center_heads;
  for (const int node : inputs) {
    if (!buffers_.IsTouched(layers_.LayerOf(node)) && std::holds_alternative<CenterHeadDecodeOp>(Node(node).op)) {
      center_heads.push_back(node);
      TouchNode(node);  // so that it is found once
    }
  }
  if (!center_heads.empty()) EmitCenterHeads(center_heads);
  for (const int node : inputs) {
    if (buffers_.IsTouched(layers_.LayerOf(node))) continue;
    if (const auto* anchors = std::get_if<AnchorHeadDecodeOp>(&Node(node).op)) EmitAnchorHead(*anchors, node);
  }
  NmsStep::Options options{.out = Touch(index),
                           .iou_threshold = op.iou_threshold,
                           .max_boxes_in = op.max_boxes_in,
                           .max_boxes_out = op.max_boxes_out};
  for (const int node : inputs) options.in.push_back(TouchNode(node));
  Push(At(index), std::make_unique<NmsStep>(std::move(options)));
}

void StepEmitter::EmitCenterHeads(const std::vector<int>& decoders) {
  static_assert(kernels::kMaxNmsInputs <= kernels::kMaxCenterHeads);
  std::vector<DecodeCenterHeadsStep::Head> heads;
  for (const int node : decoders) {
    const auto& op = std::get<CenterHeadDecodeOp>(Node(node).op);
    const auto image = [&](size_t input) { return TouchNode(Node(node).inputs[input]); };
    heads.push_back({.parameters = op.head,
                     .images = {.heatmap = image(0),
                                .center = image(1),
                                .height = image(2),
                                .dim = image(3),
                                .rot = image(4),
                                .vel = op.has_velocity ? image(5) : BufferSlice()},
                     .out = TouchNode(node)});
  }
  Push(At(layers_.LayerOf(decoders[0])), std::make_unique<DecodeCenterHeadsStep>(std::move(heads)));
}

void StepEmitter::EmitAnchorHead(const AnchorHeadDecodeOp& op, int node) {
  const std::vector<int>& images = Node(node).inputs;
  Push(At(layers_.LayerOf(node)),
       std::make_unique<DecodeAnchorHeadStep>(DecodeAnchorHeadStep::Options{.parameters = op.head,
                                                                            .scores = TouchNode(images[0]),
                                                                            .residuals = TouchNode(images[1]),
                                                                            .directions = TouchNode(images[2]),
                                                                            .out = TouchNode(node)}));
}

}  // namespace voxserve
