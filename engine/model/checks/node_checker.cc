#include "engine/model/checks/node_checker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/operator_table.h"

namespace voxserve {
namespace {

// The next two functions ensure that a node's inputs are what its operator's check expects. They report wrong inputs
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
