#include "engine/compiler/layers.h"

#include <algorithm>
#include <utility>

#include "engine/compiler/operators.h"

namespace voxserve {

Layers::Layers(const Graph& graph) : graph_(graph) {
  FindRead();
  FindConsumers();
  decodes_floats_ = DecodersReadAlone();
  Make();
  MarkOutputs();
}

bool Layers::DecidesSites(int node) const {
  const std::vector<CoordinateLevel>& levels = graph_.levels.levels();
  return std::any_of(levels.begin(), levels.end(),
                     [node](const CoordinateLevel& level) { return level.filter && level.filter->score_node == node; });
}

bool Layers::IsHead(int node) const { return IsHeadOp(Node(node).op) || IsMadeByAnswer(node); }

bool Layers::IsMadeByAnswer(int node) const {
  return std::holds_alternative<VoxelToPointOp>(Node(node).op) && consumers_[static_cast<size_t>(node)].empty();
}

bool Layers::StaysFloat32(const Layer& layer) const {
  const std::vector<int>& readers = ReadersOf(layer);
  return IsPosition(layer.result_node) || std::all_of(readers.begin(), readers.end(), [&](int reader) {
           return ReadsFloat32(reader, layer.result_node);
         });
}

bool Layers::IsPosition(int node) const {
  const GraphOp& op = Node(node).op;
  return std::holds_alternative<SitePositionOp>(op) ||
         (std::holds_alternative<PoolOp>(op) && IsPosition(Node(node).inputs[0]));
}

bool Layers::ReadsFloat32(int reader, int node) const {
  const GraphOp& op = Node(reader).op;
  // A select only compares its scores, so they may stay float32. Those of a prune may too; its first input is a feature
  // like any other.
  if (std::holds_alternative<SelectOp>(op)) return true;
  if (std::holds_alternative<PruneOp>(op)) return Node(reader).inputs[0] != node;
  if (std::holds_alternative<RotaryOp>(op)) return true;
  if (std::holds_alternative<PoolOp>(op)) return IsPosition(node);
  return IsHead(reader) && (decodes_floats_ || !IsDecoder(op));
}

bool Layers::DecodersReadAlone() const {
  const auto is_decoder = [this](int node) { return IsDecoder(Node(node).op); };
  for (const GraphNode& node : graph_.nodes) {
    if (!IsDecoder(node.op)) continue;
    for (const int image : node.inputs) {
      if (Node(image).is_selection) continue;
      const std::vector<int>& readers = consumers_[static_cast<size_t>(image)];
      if (!std::all_of(readers.begin(), readers.end(), is_decoder)) return false;
    }
  }
  return true;
}

void Layers::FindRead() {
  is_read_.assign(graph_.nodes.size(), false);
  for (const int output : graph_.OutputNodes()) is_read_[static_cast<size_t>(output)] = true;
  for (const CoordinateLevel& level : graph_.levels.levels()) {
    if (level.filter && level.filter->score_node >= 0) is_read_[static_cast<size_t>(level.filter->score_node)] = true;
  }
  for (size_t node = graph_.nodes.size(); node-- > 0;) {  // backwards, since readers stand after their inputs
    if (!is_read_[node]) continue;
    const size_t num_read = NumInputsRead(graph_.nodes[node]);
    for (size_t input = 0; input < num_read; ++input) {
      is_read_[static_cast<size_t>(graph_.nodes[node].inputs[input])] = true;
    }
  }
}

void Layers::FindConsumers() {
  consumers_.resize(graph_.nodes.size());
  for (size_t node = 0; node < graph_.nodes.size(); ++node) {
    if (!is_read_[node]) continue;
    const size_t num_read = NumInputsRead(graph_.nodes[node]);
    for (size_t input = 0; input < num_read; ++input) {
      consumers_[static_cast<size_t>(graph_.nodes[node].inputs[input])].push_back(static_cast<int>(node));
    }
  }
}

void Layers::Make() {
  layer_of_.assign(graph_.nodes.size(), -1);
  for (int node = 0; node < static_cast<int>(graph_.nodes.size()); ++node) {
    if (LayerOf(node) >= 0 || !is_read_[static_cast<size_t>(node)]) continue;
    Layer layer = BeginLayer(node, *this);
    if (layer.has_epilogue) Absorb(layer);
    for (int absorbed : absorbed_) layer_of_[static_cast<size_t>(absorbed)] = static_cast<int>(layers_.size());
    absorbed_.clear();
    layer_of_[static_cast<size_t>(node)] = static_cast<int>(layers_.size());
    layers_.push_back(std::move(layer));
  }
}

// Fuses the next node into the layer as long as the layer's value has exactly one reader and the layer's kernel can
// compute that reader.
void Layers::Absorb(Layer& layer) {
  for (;;) {
    const std::vector<int>& readers = consumers_[static_cast<size_t>(layer.result_node)];
    // A prune needs its scores even if other nodes read only its sites, not its value.
    if (readers.size() != 1 || IsOutput(layer.result_node) || DecidesSites(layer.result_node)) return;
    const int next = readers.front();
    if (!AbsorbNode(next, *this, layer)) return;
    layer.result_node = next;
    absorbed_.push_back(next);
  }
}

bool Layers::IsOutput(int node) const {
  const std::vector<int> outputs = graph_.OutputNodes();
  return std::find(outputs.begin(), outputs.end(), node) != outputs.end();
}

std::vector<int> MlpParts::All() const {
  std::vector<int> all;
  if (input_norm >= 0) all.push_back(input_norm);
  all.insert(all.end(), {first, second});
  all.insert(all.end(), norms.begin(), norms.end());
  return all;
}

std::vector<int> Layers::InputsOf(const Layer& layer) const {
  if (!layer.mlp) return OwnInputsOf(layer);
  const std::vector<int> parts = layer.mlp->All();
  std::vector<int> inputs;
  for (const int part : parts) {
    for (const int input : OwnInputsOf(At(part))) {
      if (std::find(parts.begin(), parts.end(), input) == parts.end()) inputs.push_back(input);
    }
  }
  return inputs;
}

std::vector<int> Layers::OwnInputsOf(const Layer& layer) const {
  std::vector<int> inputs;
  const GraphNode& node = FirstNode(layer);
  for (size_t i = 0; i < NumInputsRead(node); ++i) inputs.push_back(LayerOf(node.inputs[i]));
  if (layer.residual >= 0) inputs.push_back(layer.residual);
  if (layer.shortcut >= 0) inputs.push_back(LayerOf(FirstNode(At(layer.shortcut)).inputs[0]));
  if (layer.norm >= 0 && At(layer.norm).residual >= 0) inputs.push_back(At(layer.norm).residual);
  if (layer.rotary >= 0 && Node(layer.rotary).inputs.size() > 1)
    inputs.push_back(LayerOf(Node(layer.rotary).inputs[1]));
  return inputs;
}

void Layers::FuseShortcut(int conv, int shortcut) {
  Layer& of_conv = At(conv);
  Layer& of_shortcut = At(shortcut);
  of_conv.shortcut = shortcut;
  of_shortcut.is_shortcut = true;
  if (of_conv.residual == shortcut) {
    of_conv.residual = std::exchange(of_shortcut.residual, -1);
    return;
  }
  of_shortcut.residual = -1;
  of_conv.activation = of_shortcut.activation;
  of_conv.result_node = of_shortcut.result_node;
  layer_of_[static_cast<size_t>(of_conv.result_node)] = conv;
  for (Layer& layer : layers_) {
    if (layer.residual == shortcut) layer.residual = conv;
  }
}

void Layers::FuseMlp(const MlpParts& parts) {
  const std::vector<int> all = parts.All();
  for (const int part : all) At(part).is_in_mlp = part != all.back();
  At(all.back()).mlp = parts;
}

void Layers::FuseRotary(int product, int rotary) {
  Layer& of_product = At(product);
  At(LayerOf(rotary)).is_computed_by_other = true;
  of_product.rotary = rotary;
  of_product.result_node = rotary;
  layer_of_[static_cast<size_t>(rotary)] = product;
}

void Layers::MarkOutputs() {
  for (const int output : {graph_.labels_output, graph_.boxes_output}) {
    if (output >= 0) At(LayerOf(output)).is_for_all = true;
  }
  if (graph_.scores_output >= 0) At(LayerOf(graph_.scores_output)).is_for_scores = true;
  for (size_t i = 0; i < graph_.tensors.size(); ++i) {
    At(LayerOf(graph_.tensors[i].node)).for_tensors |= TensorBit(static_cast<int>(i));
  }
  for (const CoordinateLevel& level : graph_.levels.levels()) {
    if (const int score = ScoreOf(level); score >= 0) At(score).is_for_all = true;
  }
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    for (const int input : InputsOf(*layer)) {
      At(input).is_for_all |= layer->is_for_all;
      At(input).is_for_scores |= layer->is_for_scores;
      At(input).for_tensors |= layer->for_tensors;
    }
  }
}

}  // namespace voxserve
