#include "engine/compiler/int8_values.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/compiler/layers.h"
#include "engine/model/problems.h"
#include "kernels/int8/int8_product.h"

namespace voxserve {
namespace {

bool IsNonNegative(const kernels::Activation& activation) {
  using Function = kernels::ActivationFunction;
  switch (activation.function) {
    case Function::kRelu:
    case Function::kSigmoid:
    case Function::kHardSigmoid:
    case Function::kSoftplus:
    case Function::kExp:
    case Function::kSquare:
    case Function::kSqrt:
    case Function::kAbs:
      return true;
    case Function::kClamp:
      return activation.parameter >= 0;
    case Function::kNone:
    case Function::kLeakyRelu:
    case Function::kGelu:
    case Function::kSilu:
    case Function::kTanh:
    case Function::kElu:
    case Function::kHardSwish:
    case Function::kMish:
    case Function::kGeluTanh:
    case Function::kLog:
    case Function::kPower:
      break;
  }
  return false;
}

// Returns true for an operator whose result is not negative if none of its inputs is: copies, pools and interpolations.
bool KeepsSign(const GraphOp& op) {
  return std::holds_alternative<ConcatOp>(op) || std::holds_alternative<AddOp>(op) ||
         std::holds_alternative<PoolOp>(op) || std::holds_alternative<GlobalPoolOp>(op) ||
         std::holds_alternative<CropOp>(op) || std::holds_alternative<ToDenseOp>(op) ||
         std::holds_alternative<FromDenseOp>(op) || std::holds_alternative<MaxPool2dOp>(op) ||
         std::holds_alternative<DevoxelizeOp>(op) || std::holds_alternative<VoxelToPointOp>(op);
}

// Finds out for each node whether its value cannot be negative.
std::vector<bool> FindNonNegative(const Graph& graph) {
  std::vector<bool> is_non_negative;
  for (const GraphNode& node : graph.nodes) {
    const auto* const activation = std::get_if<ActivationOp>(&node.op);
    const auto is_input_non_negative = [&](int input) { return is_non_negative[static_cast<size_t>(input)]; };
    if (activation != nullptr) {
      is_non_negative.push_back(IsNonNegative(activation->activation));
    } else if (std::holds_alternative<PruneOp>(node.op)) {  // its second input only chooses sites
      is_non_negative.push_back(is_input_non_negative(node.inputs[0]));
    } else {
      // Positions, to which an interpolation may have a second input, are no values that it reads.
      const size_t num_read =
          std::holds_alternative<DevoxelizeOp>(node.op) || std::holds_alternative<VoxelToPointOp>(node.op)
              ? 1
              : node.inputs.size();
      is_non_negative.push_back(KeepsSign(node.op) &&
                                std::all_of(node.inputs.begin(),
                                            node.inputs.begin() + static_cast<std::ptrdiff_t>(num_read),
                                            is_input_non_negative));
    }
  }
  return is_non_negative;
}

// Returns the number of products in a sum of the node's; 0 for a node that does not multiply in 8 bits.
int64_t NumProducts(const GraphNode& node) {
  if (const auto* const conv = std::get_if<SparseConvOp>(&node.op)) {
    return int64_t{conv->geometry().NumOffsets()} * conv->in_channels;
  }
  if (const auto* const conv = std::get_if<Conv2dOp>(&node.op)) {
    const kernels::Conv2dGeometry& geometry = conv->geometry;
    return geometry.groups > 1 ? 0 : int64_t{geometry.kernel_size[0]} * geometry.kernel_size[1] * conv->in_channels;
  }
  const auto* const linear = std::get_if<LinearOp>(&node.op);
  return linear == nullptr ? 0 : linear->in_channels;
}

// Adds a problem for each layer that lacks a scale. It would compute in float32, which float_nodes must say.
void AddMissingScales(const Graph& graph, const Int8Candidates& candidates, const std::vector<std::string>& float_nodes,
                      const std::string& config_file, Problems* problems) {
  for (const Int8Layer& layer : candidates.layers) {
    const std::string& name = graph.nodes[static_cast<size_t>(layer.first_node)].name;
    if (std::find(float_nodes.begin(), float_nodes.end(), name) != float_nodes.end()) continue;
    std::vector<std::string> missing;
    for (const int input : layer.inputs) {
      const GraphNode& node = graph.nodes[static_cast<size_t>(input)];
      if (node.scale == 0) missing.push_back(Quoted(absl::StrCat(node.name, ".scale")));
    }
    if (missing.empty()) continue;
    ProblemsAt(absl::StrCat("node ", Quoted(name)), problems)
        .Add("weights.safetensors lacks ", absl::StrJoin(missing, ", "), ", which it needs to multiply in 8 bits; ",
             "add it, or name the node in int8 { float_nodes } of ", config_file);
  }
}

}  // namespace

std::vector<int> Int8PartsOf(const Graph& graph, int node) {
  const GraphNode& concat = graph.nodes[static_cast<size_t>(node)];
  const auto* const op = std::get_if<ConcatOp>(&concat.op);
  if (op == nullptr || !op->rulebooks.empty()) return {node};
  std::vector<int> parts;
  for (const int input : concat.inputs) {
    const std::vector<int> of_input = Int8PartsOf(graph, input);
    parts.insert(parts.end(), of_input.begin(), of_input.end());
  }
  return parts;
}

Int8Candidates FindInt8Candidates(const Graph& graph) {
  Int8Candidates candidates;
  const Layers layers(graph);
  const std::vector<bool> is_non_negative = FindNonNegative(graph);
  std::map<int, bool> values;
  for (int i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers.At(i);
    const GraphNode& node = layers.FirstNode(layer);
    const int64_t num_products = NumProducts(node);
    if (num_products == 0 || num_products > kernels::kMaxInt8Products || layers.IsPosition(node.inputs[0])) continue;
    Int8Layer& made = candidates.layers.emplace_back();
    made = {
        .first_node = layer.first_node, .inputs = Int8PartsOf(graph, node.inputs[0]), .result_node = layer.result_node};
    for (const int input : made.inputs) values.emplace(input, is_non_negative[static_cast<size_t>(input)]);
  }
  for (const auto& [node, non_negative] : values) {
    candidates.values.push_back({.node = node, .is_non_negative = non_negative});
  }
  return candidates;
}

absl::Status CheckInt8(const Graph& graph, const std::vector<std::string>& float_nodes,
                       const std::string& config_file) {
  const Int8Candidates candidates = FindInt8Candidates(graph);
  Problems problems;
  if (std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const GraphNode& node) { return node.scale == 0; })) {
    ProblemsAt(absl::StrCat(config_file, ": PRECISION_INT8"), &problems)
        .Add(
            "weights.safetensors has no scales, the tensors \"<node>.scale\"; make a version with scales by "
            "voxserve-calibrate, or set another precision");
  } else {
    AddMissingScales(graph, candidates, float_nodes, config_file, &problems);
  }
  std::set<int> has_number;
  for (const Int8Value& value : candidates.values) has_number.insert(value.node);
  for (size_t node = 0; node < graph.nodes.size(); ++node) {
    if (graph.nodes[node].scale == 0 || has_number.count(static_cast<int>(node)) > 0) continue;
    ProblemsAt(absl::StrCat("tensor ", Quoted(absl::StrCat(graph.nodes[node].name, ".scale"))), &problems)
        .Add("no layer reads the value of node ", Quoted(graph.nodes[node].name),
             " in 8 bits; the scales may be of another model");
  }
  for (const std::string& name : float_nodes) {
    const bool is_known = std::any_of(candidates.layers.begin(), candidates.layers.end(), [&](const Int8Layer& layer) {
      return graph.nodes[static_cast<size_t>(layer.first_node)].name == name;
    });
    if (is_known) continue;
    ProblemsAt(absl::StrCat(config_file, ": int8"), &problems)
        .Add("float_nodes has ", Quoted(name), ", which is no convolution or linear layer of the network that may ",
             "multiply in 8 bits");
  }
  return StatusOfProblems(absl::StrCat("model ", Quoted(graph.name)), problems);
}

}  // namespace voxserve
