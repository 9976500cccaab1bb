#include "deploy/calibrate/layer_choice.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/quoted.h"
#include "engine/compiler/operators.h"

namespace voxserve::calibrate {
namespace {

constexpr char kFirst[] = "first", kLast[] = "last";

const GraphNode& NodeAt(const Graph& graph, int node) { return graph.nodes[static_cast<size_t>(node)]; }

// Returns for each node whether a candidate's value is among those that it is computed from, itself included.
std::vector<bool> BehindCandidates(const Graph& graph, const Int8Candidates& candidates) {
  std::vector<bool> is_behind(graph.nodes.size());
  for (const Int8Layer& layer : candidates.layers) is_behind[static_cast<size_t>(layer.result_node)] = true;
  for (size_t node = 0; node < graph.nodes.size(); ++node) {  // inputs stand before their readers
    const size_t num_read = NumInputsRead(graph.nodes[node]);
    for (size_t i = 0; i < num_read; ++i) {
      if (is_behind[static_cast<size_t>(graph.nodes[node].inputs[i])]) is_behind[node] = true;
    }
  }
  return is_behind;
}

// Returns for each node whether a candidate is computed from its value. The candidate that computes the value itself is
// none.
std::vector<bool> BeforeCandidates(const Graph& graph, const Int8Candidates& candidates) {
  std::vector<bool> is_before(graph.nodes.size());
  for (const Int8Layer& layer : candidates.layers) {
    for (const int input : layer.inputs) is_before[static_cast<size_t>(input)] = true;
  }
  for (size_t node = graph.nodes.size(); node-- > 0;) {
    if (!is_before[node]) continue;
    const size_t num_read = NumInputsRead(graph.nodes[node]);
    for (size_t i = 0; i < num_read; ++i) is_before[static_cast<size_t>(graph.nodes[node].inputs[i])] = true;
  }
  return is_before;
}

}  // namespace

absl::StatusOr<std::vector<LayerChoice>> ChooseLayers(const Graph& graph, const Int8Candidates& candidates,
                                                      const std::string& float_nodes) {
  if (candidates.layers.empty()) return absl::InvalidArgumentError("no layer of the model can multiply in 8 bits");
  std::set<std::string> wanted;
  for (const auto name : absl::StrSplit(float_nodes, ',', absl::SkipEmpty())) wanted.emplace(name);
  const bool keeps_first = wanted.erase(kFirst) > 0, keeps_last = wanted.erase(kLast) > 0;
  const std::vector<bool> is_behind = BehindCandidates(graph, candidates);
  const std::vector<bool> is_before = BeforeCandidates(graph, candidates);
  std::vector<LayerChoice> layers;
  for (const Int8Layer& layer : candidates.layers) {
    const GraphNode& first = NodeAt(graph, layer.first_node);
    const GraphNode& result = NodeAt(graph, layer.result_node);
    LayerChoice choice{.node = first.name,
                       .value = result.name,
                       .in_channels = NodeAt(graph, first.inputs[0]).channels,
                       .out_channels = result.channels};
    const bool is_first = std::none_of(layer.inputs.begin(), layer.inputs.end(),
                                       [&](int input) { return is_behind[static_cast<size_t>(input)]; });
    if (wanted.erase(first.name) > 0) {
      choice.why_float = "named";
    } else if (keeps_first && is_first) {
      choice.why_float = kFirst;
    } else if (keeps_last && !is_before[static_cast<size_t>(layer.result_node)]) {
      choice.why_float = kLast;
    }
    layers.push_back(std::move(choice));
  }
  if (wanted.empty()) return layers;
  std::vector<std::string> names;
  for (const LayerChoice& layer : layers) names.push_back(layer.node);
  return absl::InvalidArgumentError(absl::StrCat("--float_nodes names ", Quoted(*wanted.begin()),
                                                 ", but the layers that can multiply in 8 bits are ",
                                                 absl::StrJoin(names, ", ")));
}

std::set<std::string> NeededScales(const Graph& graph, const Int8Candidates& candidates,
                                   const std::vector<LayerChoice>& layers) {
  std::set<std::string> needed;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].why_float.empty()) continue;
    for (const int input : candidates.layers[i].inputs) needed.insert(NodeAt(graph, input).name);
  }
  return needed;
}

void LeaveWithoutScales(const Graph& graph, const Int8Candidates& candidates, const Scales& scales,
                        std::vector<LayerChoice>* layers) {
  for (size_t i = 0; i < layers->size(); ++i) {
    const std::vector<int>& inputs = candidates.layers[i].inputs;
    const bool has_all = std::all_of(inputs.begin(), inputs.end(),
                                     [&](int input) { return scales.contains(NodeAt(graph, input).name); });
    if ((*layers)[i].why_float.empty() && !has_all) (*layers)[i].why_float = "no scale";
  }
}

std::vector<std::string> FloatNodes(const std::vector<LayerChoice>& layers) {
  std::vector<std::string> nodes;
  for (const LayerChoice& layer : layers) {
    if (!layer.why_float.empty()) nodes.push_back(layer.node);
  }
  return nodes;
}

int WorstLayer(const std::vector<LayerChoice>& layers) {
  int worst = -1;
  const auto cost = [&](size_t i) { return std::pair(layers[i].disagreement, layers[i].error); };
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].why_float.empty()) continue;
    if (worst < 0 || cost(i) > cost(static_cast<size_t>(worst))) worst = static_cast<int>(i);
  }
  return worst;
}

}  // namespace voxserve::calibrate
