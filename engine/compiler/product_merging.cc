#include "engine/compiler/product_merging.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <variant>

namespace voxserve {
namespace {

// What a layer multiplies by. A linear layer is a convolution with a kernel of one cell.
struct Product {
  kernels::Conv2dGeometry geometry;
  int in_channels = 0;
  int out_channels = 0;
  const std::vector<float>* weights = nullptr;  // in PyTorch's order
};
std::optional<Product> ProductOf(const GraphOp& op) {
  if (const auto* const conv = std::get_if<Conv2dOp>(&op)) {
    return Product{conv->geometry, conv->in_channels, conv->out_channels, &conv->weight->values};
  }
  if (const auto* const linear = std::get_if<LinearOp>(&op)) {
    return Product{{}, linear->in_channels, linear->out_channels, &linear->weight->values};
  }
  return std::nullopt;
}
Product ProductOf(const Layers& layers, const Layer& layer) { return *ProductOf(layers.FirstNode(layer).op); }

class Merger {
 public:
  Merger(const std::function<bool(int)>& is_left_out, Layers& layers) : is_left_out_(is_left_out), layers_(layers) {}

  void Run() {
    const int num_layers = layers_.size();
    std::map<int, std::vector<int>> readers;  // by input layer
    for (int index = 0; index < num_layers; ++index) {
      if (MayBeMerged(index)) readers[InputOf(index)].push_back(index);
    }
    for (const auto& [input, siblings] : readers) MergeAlike(siblings, [this](auto& alike) { MergeSiblings(alike); });
    // Convolutions that read a merged result may be merged too. The loop also visits the layers that it appends.
    for (int merged = num_layers; merged < layers_.size(); ++merged) {
      std::vector<int> columns_readers;
      for (int index = 0; index < num_layers; ++index) {
        if (IsConv2d(layers_.At(index)) && MayBeMerged(index) && layers_.At(InputOf(index)).stored_in == merged) {
          columns_readers.push_back(index);
        }
      }
      MergeAlike(columns_readers, [this](auto& alike) { MergeNeighbours(alike); });
    }
  }

 private:
  Product ProductAt(int index) const { return ProductOf(layers_, layers_.At(index)); }
  const GraphNode& ResultOf(int index) const { return layers_.Node(layers_.At(index).result_node); }
  int InputOf(int index) const { return layers_.LayerOf(layers_.FirstNode(layers_.At(index)).inputs[0]); }

  bool MayBeMerged(int index) const {
    if (is_left_out_(index)) return false;
    const Layer& layer = layers_.At(index);
    const std::optional<Product> product = ProductOf(layers_.FirstNode(layer).op);
    if (!product || product->geometry.is_transposed || product->geometry.groups > 1) return false;
    if (layer.residual >= 0 || layer.stored_in >= 0 || layer.is_shortcut) return false;
    if (layer.is_in_mlp || layer.mlp) return false;
    const std::vector<int>& readers = layers_.ReadersOf(layer);
    return std::none_of(readers.begin(), readers.end(), [this](int reader) {
      const GraphOp& op = layers_.Node(reader).op;
      return std::holds_alternative<ConcatOp>(op) || std::holds_alternative<ArgmaxOp>(op) || layers_.IsOfMlp(reader);
    });
  }

  bool IsConv2d(const Layer& layer) const { return std::holds_alternative<Conv2dOp>(layers_.FirstNode(layer).op); }

  bool AreAlike(int a, int b) const {
    const Layer& one = layers_.At(a);
    const Layer& other = layers_.At(b);
    return ProductAt(a).geometry == ProductAt(b).geometry && ProductAt(a).in_channels == ProductAt(b).in_channels &&
           one.activation == other.activation && one.is_for_all == other.is_for_all &&
           one.is_for_scores == other.is_for_scores && one.for_tensors == other.for_tensors &&
           layers_.StaysFloat32(one) == layers_.StaysFloat32(other) &&
           (one.rotary < 0 || other.rotary < 0 ? one.rotary == other.rotary || !HasPrune()
                                               : HaveOneRotation(one, other));
  }

  // Where scores decide about sites, positions may belong to a later segment than the input of the products.
  bool HasPrune() const {
    const std::vector<CoordinateLevel>& levels = layers_.graph().levels.levels();
    return std::any_of(levels.begin(), levels.end(), [this](const auto& level) { return layers_.ScoreOf(level) >= 0; });
  }

  // Returns true if two rotated results have the same angles in the same order.
  bool HaveOneRotation(const Layer& one, const Layer& other) const {
    const auto base = [&](const Layer& layer) { return std::get<RotaryOp>(layers_.Node(layer.rotary).op).base; };
    const auto positions = [&](const Layer& layer) {
      const std::vector<int>& inputs = layers_.Node(layer.rotary).inputs;
      return inputs.size() > 1 ? layers_.LayerOf(inputs[1]) : -1;
    };
    return base(one) == base(other) && positions(one) == positions(other) &&
           RotatedPairs(layers_, one) == RotatedPairs(layers_, other);
  }

  // Calls merge(alike) for each set of two or more layers of which any two agree. Sets keep the layers' order.
  template <typename Merge>
  void MergeAlike(std::vector<int> candidates, const Merge& merge) {
    while (candidates.size() > 1) {
      std::vector<int> alike, others;
      for (const int c : candidates) {
        const bool agrees = std::all_of(alike.begin(), alike.end(), [&](int other) { return AreAlike(other, c); });
        (agrees ? alike : others).push_back(c);
      }
      candidates = std::move(others);
      if (alike.size() > 1) merge(alike);
    }
  }

  void MergeSiblings(std::vector<int>& siblings) {
    std::stable_partition(siblings.begin(), siblings.end(), [&](int c) { return layers_.At(c).rotary >= 0; });
    std::vector<int32_t> begins = {0};
    for (const int sibling : siblings) begins.push_back(begins.back() + ResultOf(sibling).channels);
    Merge(siblings, begins, /*num_groups=*/1);
  }

  // Merges layers that read neighbouring columns of one value.
  void MergeNeighbours(std::vector<int>& readers) {
    const auto column = [&](int index) { return layers_.At(InputOf(index)).column; };
    std::stable_sort(readers.begin(), readers.end(), [&](int a, int b) { return column(a) < column(b); });
    for (size_t begin = 0, end = 0; begin < readers.size(); begin = end) {
      int32_t width = 0;
      for (end = begin; end < readers.size(); ++end) {
        if (end > begin && column(readers[end]) != column(readers[end - 1]) + ProductAt(readers[end]).in_channels)
          break;
        width = std::max(width, ResultOf(readers[end]).channels);
      }
      if (end - begin < 2) continue;
      std::vector<int32_t> begins = {0};
      for (size_t i = begin; i < end; ++i) begins.push_back(begins.back() + width);
      Merge({readers.begin() + static_cast<ptrdiff_t>(begin), readers.begin() + static_cast<ptrdiff_t>(end)}, begins,
            static_cast<int32_t>(end - begin));
    }
  }

  // begins: [members + 1] the first output column of each member, and the end.
  void Merge(const std::vector<int>& members, const std::vector<int32_t>& begins, int32_t num_groups) {
    if (begins.back() > kMaxChannels) return;
    Layer merged = layers_.At(members.front());
    merged.scale.clear();
    merged.bias.clear();
    merged.members = members;
    merged.num_columns = begins.back();
    merged.num_groups = num_groups;
    for (size_t i = 0; i < members.size(); ++i) {
      layers_.At(members[i]).stored_in = layers_.size();
      layers_.At(members[i]).column = begins[i];
    }
    layers_.Append(std::move(merged));
  }

  const std::function<bool(int)>& is_left_out_;
  Layers& layers_;
};

std::vector<float> ScaledWeights(const Product& product, const std::vector<float>& scale) {
  std::vector<float> weights = *product.weights;
  if (scale.empty()) return weights;
  const auto cells = static_cast<size_t>(product.geometry.kernel_size[0] * product.geometry.kernel_size[1]);
  const size_t an_output = product.geometry.is_transposed ? cells : weights.size() / scale.size();
  for (size_t i = 0; i < weights.size(); ++i) weights[i] *= scale[i / an_output % scale.size()];
  return weights;
}

// Returns rows of output channels in the order of PairedChannel if the layer's result is rotated.
std::vector<float> Paired(const Layers& layers, const Layer& layer, std::vector<float> rows) {
  if (layer.rotary < 0 || rows.empty()) return rows;
  const auto num_rows = static_cast<size_t>(layers.Node(layer.rotary).channels), a_row = rows.size() / num_rows;
  const auto pairs = static_cast<size_t>(RotatedPairs(layers, layer));
  std::vector<float> paired(rows.size());
  for (size_t c = 0; c < num_rows; ++c) {
    std::copy_n(rows.begin() + static_cast<ptrdiff_t>(c * a_row), a_row,
                paired.begin() + static_cast<ptrdiff_t>(PairedChannel(c, pairs) * a_row));
  }
  return paired;
}

}  // namespace

int32_t RotatedPairs(const Layers& layers, const Layer& layer) {
  const GraphNode& node = layers.Node(layer.rotary);
  return node.channels / std::get<RotaryOp>(node.op).num_heads / layers.graph().dimension / 2;
}

void MergeProducts(const std::function<bool(int)>& is_left_out, Layers& layers) { Merger(is_left_out, layers).Run(); }

FoldedProduct FoldProduct(const Layers& layers, const Layer& layer) {
  const Product product = ProductOf(layers, layer);
  if (layer.members.empty()) {
    return {product.geometry, Paired(layers, layer, ScaledWeights(product, layer.scale)),
            Paired(layers, layer, layer.bias)};
  }
  FoldedProduct folded{.geometry = product.geometry};
  folded.geometry.groups = layer.num_groups;
  const auto num_columns = static_cast<size_t>(layer.num_columns);
  const size_t a_column = product.weights->size() / static_cast<size_t>(product.out_channels);
  folded.weights.resize(num_columns * a_column, 0.0f);
  for (const int index : layer.members) {
    const Layer& member = layers.At(index);
    const auto column = static_cast<size_t>(member.column);
    const std::vector<float> weights = Paired(layers, member, ScaledWeights(ProductOf(layers, member), member.scale));
    std::copy(weights.begin(), weights.end(), folded.weights.begin() + static_cast<ptrdiff_t>(column * a_column));
    if (member.bias.empty()) continue;
    const std::vector<float> bias = Paired(layers, member, member.bias);
    folded.bias.resize(num_columns, 0.0f);
    std::copy(bias.begin(), bias.end(), folded.bias.begin() + static_cast<ptrdiff_t>(column));
  }
  return folded;
}

}  // namespace voxserve
