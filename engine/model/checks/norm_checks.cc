#include <cmath>
#include <cstdint>
#include <utility>

#include "engine/model/checks/checks.h"

namespace voxserve {
namespace {

// Checks the parameters that instance norm and group norm have in common. num_groups: 0 if it is not known, since it or
// the input has a problem.
void CheckSampleNorm(int num_groups, float epsilon, bool is_affine, NodeContext& context) {
  SampleNormOp op{.num_groups = num_groups, .epsilon = epsilon};
  if (!std::isfinite(epsilon) || epsilon <= 0)
    context.at.Add("epsilon is ", epsilon, "; it must be finite and above 0");
  const GraphNode* const input = context.Known(0);
  const int64_t channels = input == nullptr ? kUnknownSize : input->channels;
  if (is_affine) {
    op.weight = context.ReadTensor("weight", {channels});
    op.bias = context.ReadTensor("bias", {channels});
  }
  if (num_groups > 0) {
    context.node.TakeRowsOf(*input);
    context.node.channels = input->channels;
  }
  context.node.op = std::move(op);
}

}  // namespace

void CheckInstanceNorm(NodeContext& context) {
  const model::v1::InstanceNorm& proto = context.proto.instance_norm();
  const GraphNode* const input = context.FeaturesInput(0);
  CheckSampleNorm(input == nullptr ? 0 : input->channels,
                  proto.has_epsilon() ? proto.epsilon() : SampleNormOp().epsilon, proto.affine(), context);
}

void CheckGroupNorm(NodeContext& context) {
  const model::v1::GroupNorm& proto = context.proto.group_norm();
  const GraphNode* const input = context.FeaturesInput(0);
  const uint32_t num_groups = proto.num_groups();
  bool is_right = num_groups > 0;
  if (!is_right) {
    context.at.Add("num_groups is 0; it must be 1 or more");
  } else if (input != nullptr && static_cast<uint32_t>(input->channels) % num_groups != 0) {
    context.at.Add("num_groups is ", num_groups, ", which does not divide the ", input->channels, " channels");
    is_right = false;
  }
  CheckSampleNorm(input == nullptr || !is_right ? 0 : static_cast<int>(num_groups),
                  proto.has_epsilon() ? proto.epsilon() : SampleNormOp().epsilon, proto.affine(), context);
}

}  // namespace voxserve
