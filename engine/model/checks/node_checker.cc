#include "engine/model/checks/node_checker.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/operator_table.h"

namespace voxserve {
namespace {

// The next three functions ensure that a node's inputs are what its operator's check expects. They report wrong inputs
// and replace them by -1, an unknown input.

void CheckInputCount(const InputCount& count, NodeContext& context) {
  std::vector<int>& inputs = context.node.inputs;
  if (inputs.size() >= count.least && inputs.size() <= count.most) return;
  context.at.Add("has ", inputs.size(), " inputs; it needs ", count.least,
                 count.most == kAnyNumber   ? " or more"
                 : count.most > count.least ? absl::StrCat(" to ", count.most)
                                            : "");
  inputs.assign(count.least, -1);
}

void CheckFirstInput(FirstInput rows, NodeContext& context) {
  if (rows == FirstInput::kAny) return;
  const GraphNode* const input = context.Known(0);
  if (input == nullptr || input->level >= 0) return;
  context.at.Add("its input ", Quoted(input->name), " has ", RowsText(*input), "; it needs sites");
  context.node.inputs[0] = -1;
}

// Only attention.groups_of names groups, which have no values.
void RefuseGroups(NodeContext& context) {
  const auto are_groups = [&](int node) {
    return node >= 0 && std::holds_alternative<GroupsOp>(context.graph.nodes[static_cast<size_t>(node)].op);
  };
  for (int& input : context.node.inputs) {
    if (!are_groups(input)) continue;
    context.at.Add("its input ", Quoted(context.graph.nodes[static_cast<size_t>(input)].name),
                   " is a groups, which has no features; only groups_of names those");
    input = -1;
  }
  if (context.proto.has_attention() || !are_groups(context.partner)) return;
  context.at.Add("names ", Quoted(context.graph.nodes[static_cast<size_t>(context.partner)].name),
                 ", which is a groups; only groups_of names those");
  context.partner = -1;
}

}  // namespace

void NodeChecker::Check(const model::v1::Node& proto, std::vector<int> inputs, int partner,
                        const std::string& weights_owner, const ProblemsAt& at) {
  NodeContext context{.proto = proto,
                      .at = at,
                      .graph = graph_,
                      .weights = weights_,
                      .voxelize = voxelize_,
                      .partner = partner,
                      .node = {.name = proto.name(), .inputs = std::move(inputs)}};
  context.weights_owner = weights_owner;
  if (const OperatorRow* const row = FindOperator(proto.op_case()); row != nullptr) {
    CheckInputCount(row->inputs, context);
    RefuseGroups(context);
    CheckFirstInput(row->first_input, context);
    row->check(context);
    if (!proto.weights_of().empty() && !context.has_read_tensors && context.node.channels > 0) {
      at.Add("has weights_of, and reads no tensors");
    }
  } else {
    at.Add("has no operator");
  }
  graph_.nodes.push_back(std::move(context.node));
}

}  // namespace voxserve
