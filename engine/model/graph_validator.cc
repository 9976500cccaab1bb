#include "engine/model/graph_validator.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/node_checker.h"
#include "engine/model/node_order.h"
#include "engine/model/weight_reader.h"

namespace voxserve {
namespace {

using model::v1::Model;
using model::v1::Node;
using model::v1::Output;

class Validator {
 public:
  Validator(const Model& model, const StoredTensors& tensors, Problems* problems, const std::stop_token& stop)
      : model_(model), weights_(tensors, problems), problems_(problems), stop_(stop) {
    graph_.name = model.name();
    graph_.description = model.description();
    for (const auto& [name, tensor] : tensors.by_name) graph_.num_parameters += NumValues(tensor);
  }

  Graph Run() {
    if (model_.dimension() > kernels::kMaxDimension) {
      AtModel().Add("dimension is ", model_.dimension(), "; it must be 1 to ", kernels::kMaxDimension);
      return {};  // else the length of every list per axis would be reported as wrong
    }
    graph_.dimension = model_.dimension() == 0 ? 3 : static_cast<int>(model_.dimension());
    if (!CheckSize()) return {};
    IndexNames();
    ResolveInputs();
    if (!CheckNodes()) return {};
    for (GraphNode& node : graph_.nodes) node.scale = weights_.ReadScale(node.name);
    CheckOutputs();
    weights_.ReportUnused();
    return std::move(graph_);
  }

 private:
  static constexpr int kNone = -1;
  static constexpr int kMaxOutputs = kMaxTensors + 3;  // labels, scores and boxes

  ProblemsAt AtModel() const { return {"model.textproto", problems_}; }
  ProblemsAt AtNode(int node) const {
    const std::string& name = model_.nodes(node).name();
    return {name.empty() ? absl::StrCat("node number ", node) : absl::StrCat("node ", Quoted(name)), problems_};
  }

  // Returns false if the model is too large for the other checks.
  bool CheckSize() const {
    const auto check = [&](const char* what, int64_t number, int64_t most) {
      if (number > most) AtModel().Add("has ", number, " ", what, "; at most ", most, " are possible");
      return number <= most;
    };
    int64_t num_inputs = 0;
    for (const Node& node : model_.nodes()) num_inputs += node.inputs_size();
    return check("nodes", model_.nodes_size(), kMaxNodes) && check("inputs of nodes", num_inputs, kMaxInputs) &&
           check("outputs", model_.outputs_size(), kMaxOutputs);
  }

  void IndexNames() {
    if (model_.nodes().empty()) AtModel().Add("has no nodes");
    for (int node = 0; node < model_.nodes_size(); ++node) {
      const std::string& name = model_.nodes(node).name();
      if (name.empty()) {
        AtNode(node).Add("has no name");
      } else if (!index_of_.emplace(name, node).second) {
        AtNode(node).Add("another node has the same name");
      }
    }
  }

  // Resolves input names to indices of model_.nodes; kNone for names that do not exist.
  void ResolveInputs() {
    for (int node = 0; node < model_.nodes_size(); ++node) {
      const Node& proto = model_.nodes(node);
      std::vector<int> inputs;
      for (const std::string& name : proto.inputs()) {
        inputs.push_back(IndexOf(name));
        if (inputs.back() == kNone) AtNode(node).Add("its input ", Quoted(name), " does not exist");
      }
      inputs_.push_back(std::move(inputs));
      partner_.push_back(kNone);
      const model::v1::SparseConv& conv = proto.sparse_conv();
      const std::string& paired_with = proto.has_pool() ? proto.pool().paired_with() : conv.paired_with();
      const std::string& sites_of = proto.has_from_dense()       ? proto.from_dense().sites_of()
                                    : proto.has_point_to_voxel() ? proto.point_to_voxel().sites_of()
                                                                 : conv.sites_of();
      for (const auto& [field, name] : {std::pair("paired_with", paired_with),
                                        {"sites_of", sites_of},
                                        {"groups_of", proto.attention().groups_of()}}) {
        if (name.empty()) continue;
        partner_.back() = IndexOf(name);
        if (partner_.back() == kNone) AtNode(node).Add(field, " ", Quoted(name), " does not exist");
      }
    }
  }

  int IndexOf(const std::string& name) const {
    const auto found = index_of_.find(name);
    return found == index_of_.end() ? kNone : found->second;
  }

  // Checks nodes in topological order. Nodes in a cycle, and those that depend on them, come last with unknown inputs.
  // Returns false if it could not check all nodes.
  bool CheckNodes() {
    const int num_nodes = model_.nodes_size();
    std::vector<std::vector<int>> dependencies = inputs_;
    for (int node = 0; node < num_nodes; ++node) {
      dependencies[node].push_back(partner_[node]);
      dependencies[node].erase(std::remove(dependencies[node].begin(), dependencies[node].end(), kNone),
                               dependencies[node].end());
    }
    NodeOrder order = OrderNodes(dependencies);
    if (!order.cycle.empty()) ReportCycle(order.cycle);

    graph_index_.assign(num_nodes, kNone);
    NodeChecker checker(&graph_, &weights_);
    for (const int node : order.order) {
      if (!CheckNode(node, &checker)) return false;
    }
    for (int node = 0; node < num_nodes; ++node) {
      if (graph_index_[node] == kNone && !CheckNode(node, &checker)) return false;
    }
    if (num_nodes > 0 && !checker.has_voxelize()) AtModel().Add("no node is a voxelize");
    return true;
  }

  // Returns false if no further node can be checked.
  bool CheckNode(int node, NodeChecker* checker) {
    if (stop_.stop_requested()) return false;
    std::vector<int> inputs;
    for (const int input : inputs_[node]) inputs.push_back(input == kNone ? kNone : graph_index_[input]);
    const int partner = partner_[node] == kNone ? kNone : graph_index_[partner_[node]];
    checker->Check(model_.nodes(node), inputs, partner, WeightsOwner(node), AtNode(node));
    graph_index_[node] = static_cast<int>(graph_.nodes.size()) - 1;
    if (graph_.levels.is_full()) {
      AtNode(node).Add("needs one more than the ", kMaxLevels, " coordinate levels or ", kMaxRulebooks,
                       " rulebooks that a network may have");
    }
    return !graph_.levels.is_full();
  }

  // Returns the name of the node whose tensors this node reads. If weights_of is wrong, reports a problem and returns
  // "".
  std::string WeightsOwner(int node) const {
    const Node& proto = model_.nodes(node);
    const std::string& name = proto.weights_of();
    if (name.empty()) return proto.name();
    const int index = IndexOf(name);
    if (index == kNone) {
      AtNode(node).Add("weights_of ", Quoted(name), " does not exist");
      return "";
    }
    const Node& owner = model_.nodes(index);
    if (index == node) {
      AtNode(node).Add("weights_of names the node itself");
    } else if (owner.op_case() != proto.op_case()) {
      AtNode(node).Add("weights_of ", Quoted(name), " is of another operator; both must be of the same");
    } else if (!owner.weights_of().empty()) {
      AtNode(node).Add("weights_of ", Quoted(name), " has weights_of ", Quoted(owner.weights_of()),
                       " itself; name the node that has the tensors");
    } else {
      return name;
    }
    return "";
  }

  void ReportCycle(std::vector<int> cycle) {
    cycle.push_back(cycle.front());
    AtModel().Add("nodes form a cycle, each depending on the next: ",
                  absl::StrJoin(cycle, " -> ", [&](std::string* out, int node) {
                    absl::StrAppend(out, Quoted(model_.nodes(node).name()));
                  }));
  }

  void CheckOutputs() {
    if (model_.outputs().empty()) AtModel().Add("has no outputs");
    const size_t num_problems = problems_->size();
    for (const Output& output : model_.outputs()) CheckOutput(output);
    if (problems_->size() > num_problems || model_.outputs().empty()) return;
    if (graph_.scores_output != kNone && graph_.labels_output == kNone) {
      AtModel().Add("has an output of KIND_SCORES and none of KIND_LABELS; KIND_TENSOR answers with features alone");
      return;
    }
    CheckClasses();
    if (problems_->empty()) ReportIdleNodes();
  }

  // Returns the member of the graph for an output of this kind; null for an unknown kind.
  int* SlotOf(Output::Kind kind) {
    switch (kind) {
      case Output::KIND_LABELS:
        return &graph_.labels_output;
      case Output::KIND_SCORES:
        return &graph_.scores_output;
      case Output::KIND_BOXES:
        return &graph_.boxes_output;
      default:
        return nullptr;
    }
  }

  void CheckOutput(const Output& output) {
    const bool is_labels = output.kind() == Output::KIND_LABELS;
    const ProblemsAt at(absl::StrCat("output ", Quoted(output.node())), problems_);
    if (output.kind() == Output::KIND_TENSOR) {
      CheckTensor(output, at);
      return;
    }
    int* const slot = SlotOf(output.kind());
    if (slot == nullptr) {
      at.Add("kind must be KIND_LABELS, KIND_SCORES, KIND_BOXES or KIND_TENSOR");
      return;
    }
    if (!output.name().empty()) at.Add("has the name ", Quoted(output.name()), ", which KIND_TENSOR alone may have");
    if (*slot != kNone) at.Add("is the second one of ", Output::Kind_Name(output.kind()));
    const int node = IndexOf(output.node());
    if (node == kNone) {
      at.Add("this node does not exist");
      return;
    }
    *slot = graph_index_[node];
    if (output.kind() == Output::KIND_BOXES) {
      if (!model_.nodes(node).has_nms() && !model_.nodes(node).has_query_decode()) {
        at.Add("this node is neither an nms nor a query_decode");
      }
      return;
    }
    const GraphNode& made = graph_.nodes[*slot];
    const GraphNode* const source = SourceOf(*slot);
    if (source == nullptr) return;
    if (made.level != kPointLevel || std::holds_alternative<FarthestPointSampleOp>(made.op)) {
      at.Add("this node is neither a voxel_to_point nor on points");
    } else if (made.is_labels != is_labels) {
      at.Add(is_labels ? "KIND_LABELS needs an argmax; node " : "KIND_SCORES needs features; node ",
             Quoted(source->name), is_labels ? " computes features" : " computes labels");
    }
  }

  void CheckTensor(const Output& output, const ProblemsAt& at) {
    const std::string& name = output.name();
    if (!IsTensorName(name)) {
      at.Add("its name is ", Quoted(name),
             "; that of a tensor has 1 to 64 letters, digits, \".\", \"_\" or \"-\", begins with a letter or digit, "
             "is not labels, scores or boxes and does not end in .coordinates or .unit");
    }
    const auto& tensors = graph_.tensors;
    if (std::any_of(tensors.begin(), tensors.end(), [&](const GraphTensor& other) { return other.name == name; })) {
      at.Add("is the second tensor with the name ", Quoted(name));
    }
    if (tensors.size() == kMaxTensors) at.Add("is one tensor more than the ", kMaxTensors, " that a model may have");
    const int node = IndexOf(output.node());
    if (node == kNone) {
      at.Add("this node does not exist");
      return;
    }
    const GraphNode& made = graph_.nodes[graph_index_[node]];
    if (std::holds_alternative<FarthestPointSampleOp>(made.op) || std::holds_alternative<GroupsOp>(made.op)) {
      at.Add("this node is a ", std::holds_alternative<GroupsOp>(made.op) ? "groups" : "farthest_point_sample",
             ", which has no features");
    } else if (made.is_labels) {
      at.Add("this node computes labels; KIND_LABELS answers with labels of points");
    } else if (made.is_selection) {
      at.Add("this node selects queries; a gather has tensors of them");
    } else if (made.max_boxes > 0 || IsHeadOp(made.op)) {
      at.Add("this node computes boxes; KIND_BOXES answers with those of an nms");
    }
    graph_.tensors.push_back({.name = name, .node = graph_index_[node]});
  }

  static bool IsTensorName(const std::string& name) {
    constexpr size_t kMaxBytes = 64;
    if (name.empty() || name.size() > kMaxBytes || !absl::ascii_isalnum(static_cast<unsigned char>(name[0]))) {
      return false;
    }
    if (name == "labels" || name == "scores" || name == "boxes") return false;
    // For a tensor NAME on sites, clients also write files NAME.coordinates and NAME.unit.
    if (absl::EndsWith(name, ".coordinates") || absl::EndsWith(name, ".unit")) return false;
    return std::all_of(name.begin(), name.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
    });
  }

  // Returns the node that computes an output's values: for a voxel_to_point, that node's input. Returns null if the
  // result is not known.
  const GraphNode* SourceOf(int output) const {
    const GraphNode& node = graph_.nodes[output];
    if (node.channels == 0) return nullptr;
    return std::holds_alternative<VoxelToPointOp>(node.op) ? &graph_.nodes[node.inputs[0]] : &node;
  }

  void CheckClasses() {
    CheckLabelClasses();
    CheckBoxClasses();
  }

  void CheckLabelClasses() {
    if (graph_.labels_output == kNone) return;
    const GraphNode* const labels = SourceOf(graph_.labels_output);
    const auto* const argmax = labels == nullptr ? nullptr : std::get_if<ArgmaxOp>(&labels->op);
    if (argmax == nullptr) return;
    graph_.num_classes = argmax->num_classes;
    const GraphNode* const scores = graph_.scores_output == kNone ? nullptr : SourceOf(graph_.scores_output);
    if (scores != nullptr && scores->channels != graph_.num_classes) {
      AtModel().Add("its scores have ", scores->channels, " channels (node ", Quoted(scores->name), "), its labels ",
                    graph_.num_classes, " classes (node ", Quoted(labels->name), ")");
    }
  }

  // If the network has labels, checks that the class ids of boxes are below the labels' number of classes.
  void CheckBoxClasses() {
    if (graph_.boxes_output == kNone) return;
    const GraphNode& boxes = graph_.nodes[graph_.boxes_output];
    int largest_id = 0;
    for (const int input : IsDecoder(boxes.op) ? std::vector<int>{graph_.boxes_output} : boxes.inputs) {
      if (input == kNone) continue;
      const GraphOp& op = graph_.nodes[input].op;
      const auto read_ids = [&](const auto& head) {
        largest_id = std::max(largest_id, *std::max_element(head.class_ids.begin(), head.class_ids.end()));
      };
      if (const auto* center = std::get_if<CenterHeadDecodeOp>(&op)) {
        read_ids(center->head);
        graph_.has_velocities |= center->has_velocity;
      } else if (const auto* anchors = std::get_if<AnchorHeadDecodeOp>(&op)) {
        read_ids(anchors->head);
      } else if (const auto* queries = std::get_if<QueryDecodeOp>(&op)) {
        read_ids(queries->head);
        graph_.has_velocities |= queries->has_velocity;
      }
    }
    if (graph_.labels_output == kNone) {
      graph_.num_classes = largest_id + 1;
    } else if (largest_id >= graph_.num_classes) {
      AtModel().Add("its boxes have class id ", largest_id, " (node ", Quoted(boxes.name), "), its labels ",
                    graph_.num_classes, " classes");
    }
  }

  // Reports nodes that no output depends on. Call it only if the graph has no other problem.
  void ReportIdleNodes() {
    std::vector<bool> is_needed(graph_.nodes.size(), false);
    for (const int output : graph_.OutputNodes()) is_needed[output] = true;
    for (size_t index = graph_.nodes.size(); index-- > 0;) {
      const GraphNode& node = graph_.nodes[index];
      if (!is_needed[index]) continue;
      for (const int input : node.inputs) is_needed[input] = true;
      if (const int partner = PartnerOf(node.op); partner != kNone) is_needed[partner] = true;
      if (const int named = SitesOf(node.op); named != kNone) is_needed[named] = true;
      if (const int groups = GroupsOf(node.op); groups != kNone) is_needed[groups] = true;
    }
    for (int node = 0; node < model_.nodes_size(); ++node) {
      if (!is_needed[graph_index_[node]]) AtNode(node).Add("no output depends on it");
    }
  }

  const Model& model_;
  WeightReader weights_;
  Problems* const problems_;
  const std::stop_token& stop_;
  Graph graph_;
  // These four members describe model_.nodes.
  absl::flat_hash_map<std::string, int> index_of_;  // index by name
  std::vector<std::vector<int>> inputs_;            // by node: indices of its inputs
  std::vector<int> partner_;                        // by node: index of the node in paired_with, sites_of or groups_of
  std::vector<int> graph_index_;                    // by node: its index in graph_.nodes
};

}  // namespace

Graph ValidateGraph(const Model& model, const StoredTensors& tensors, Problems* problems, const std::stop_token& stop) {
  return Validator(model, tensors, problems, stop).Run();
}

}  // namespace voxserve
