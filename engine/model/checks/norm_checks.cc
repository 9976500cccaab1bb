// Norms by the statistics of each sample.

#include <cmath>
#include <cstdint>
#include <utility>

#include "engine/model/checks/node_checker.h"

namespace voxserve {

void NodeChecker::CheckInstanceNorm(const model::v1::InstanceNorm& proto, GraphNode* node, const ProblemsAt& at) {
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  CheckSampleNorm(input == nullptr ? 0 : input->channels,
                  proto.has_epsilon() ? proto.epsilon() : SampleNormOp().epsilon, proto.affine(), node, at);
}

void NodeChecker::CheckGroupNorm(const model::v1::GroupNorm& proto, GraphNode* node, const ProblemsAt& at) {
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  const uint32_t num_groups = proto.num_groups();
  bool is_right = num_groups > 0;
  if (!is_right) {
    at.Add("num_groups is 0; it must be 1 or more");
  } else if (input != nullptr && static_cast<uint32_t>(input->channels) % num_groups != 0) {
    at.Add("num_groups is ", num_groups, ", which does not divide the ", input->channels, " channels");
    is_right = false;
  }
  CheckSampleNorm(input == nullptr || !is_right ? 0 : static_cast<int>(num_groups),
                  proto.has_epsilon() ? proto.epsilon() : SampleNormOp().epsilon, proto.affine(), node, at);
}

void NodeChecker::CheckSampleNorm(int num_groups, float epsilon, bool is_affine, GraphNode* node,
                                  const ProblemsAt& at) {
  SampleNormOp op{.num_groups = num_groups, .epsilon = epsilon};
  if (!std::isfinite(epsilon) || epsilon <= 0) at.Add("epsilon is ", epsilon, "; it must be finite and above 0");
  const GraphNode* const input = Known(*node, 0);
  const int64_t channels = input == nullptr ? kUnknownSize : input->channels;
  if (is_affine) {
    op.weight = weights_.Read(node->name, "weight", {channels});
    op.bias = weights_.Read(node->name, "bias", {channels});
  }
  if (num_groups > 0) {
    node->TakeRowsOf(*input);
    node->channels = input->channels;
  }
  node->op = std::move(op);
}

}  // namespace voxserve
