#include "engine/model/checks/operator_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"
#include "kernels/boxes/rotated_nms.h"

namespace voxserve {
namespace {

using model::v1::Node;

void CheckBatchNorm(NodeContext& context) {
  const model::v1::BatchNorm& proto = context.proto.batch_norm();
  BatchNormOp op;
  if (proto.has_epsilon()) op.epsilon = proto.epsilon();
  if (!std::isfinite(op.epsilon) || op.epsilon < 0) {
    context.at.Add("epsilon is ", op.epsilon, "; it must be finite and not negative");
    op.epsilon = BatchNormOp().epsilon;
  }
  const GraphNode* const input = context.FeaturesInput(0);
  const int64_t channels = input == nullptr ? kUnknownSize : input->channels;
  op.weight = context.ReadTensor("weight", {channels});
  op.bias = context.ReadTensor("bias", {channels});
  op.running_mean = context.ReadTensor("running_mean", {channels});
  op.running_var = context.ReadTensor("running_var", {channels});
  if (op.running_var != nullptr) {
    const std::vector<float>& variances = op.running_var->values;
    const auto bad = std::find_if(variances.begin(), variances.end(),
                                  [&](float variance) { return variance < 0 || variance + op.epsilon <= 0; });
    if (bad != variances.end()) {
      context.at.Add("running_var[", bad - variances.begin(), "] is ", *bad, " and epsilon ", op.epsilon,
                     "; variances must not be negative, and their sum with epsilon above 0");
    }
  }
  if (input != nullptr) {
    context.node.TakeRowsOf(*input);
    context.node.channels = input->channels;
  }
  context.node.op = std::move(op);
}

void CheckLinear(NodeContext& context) {
  const model::v1::Linear& proto = context.proto.linear();
  LinearOp op;
  op.out_channels = ReadOutChannels(proto.out_channels(), context.at);
  const GraphNode* const input = context.FeaturesInput(0);
  if (input != nullptr) {
    op.in_channels = input->channels;
    context.node.TakeRowsOf(*input);
    context.node.channels = op.out_channels;
  }
  op.weight = context.ReadTensor("weight", {SizeOrUnknown(op.out_channels), SizeOrUnknown(op.in_channels)});
  if (proto.bias()) op.bias = context.ReadTensor("bias", {SizeOrUnknown(op.out_channels)});
  context.node.op = std::move(op);
}

void CheckActivation(NodeContext& context) {
  context.node.op = ReadActivation(context.proto.activation(), context.at).value_or(ActivationOp());
  const GraphNode* const input = context.FeaturesInput(0);
  if (input == nullptr) return;
  context.node.TakeRowsOf(*input);
  context.node.channels = input->channels;
}

void CheckAdd(NodeContext& context) {
  AddOp op;
  const std::vector<const GraphNode*> inputs = MeetInputs(context.proto.add().sites(), &op.rulebooks, context);
  context.node.op = std::move(op);
  if (inputs.empty()) return;
  if (inputs[0]->channels != inputs[1]->channels) {
    context.at.Add("adds ", inputs[0]->channels, " channels of ", Quoted(inputs[0]->name), " and ", inputs[1]->channels,
                   " of ", Quoted(inputs[1]->name));
    return;
  }
  context.node.channels = inputs[0]->channels;
}

void CheckConcat(NodeContext& context) {
  ConcatOp op;
  const std::vector<const GraphNode*> inputs = MeetInputs(context.proto.concat().sites(), &op.rulebooks, context);
  context.node.op = std::move(op);
  if (inputs.empty()) return;
  int64_t channels = 0;
  for (const GraphNode* input : inputs) channels += input->channels;
  if (channels > kMaxChannels) {
    context.at.Add("has ", channels, " channels; at most ", kMaxChannels, " are possible");
    return;
  }
  context.node.channels = static_cast<int>(channels);
}

void CheckArgmax(NodeContext& context) {
  ArgmaxOp op;
  const GraphNode* const input = context.FeaturesInput(0);
  if (input != nullptr) {
    op.num_classes = input->channels;
    context.node.TakeRowsOf(*input);
    context.node.channels = 1;
    if (op.num_classes > kMaxClasses) {
      context.at.Add("has ", op.num_classes, " classes; at most ", kMaxClasses, " are possible");
    }
  }
  context.node.is_labels = true;
  context.node.op = op;
}

constexpr FirstInput kAny = FirstInput::kAny;
constexpr FirstInput kSites = FirstInput::kSites;

// The rows are in the order of the operators in model.proto.
constexpr OperatorRow kOperators[] = {
    // operator, {least, most} inputs, kind of the first input's rows, check
    {Node::kVoxelize, {0, 1}, kAny, CheckVoxelize},
    {Node::kSparseConv, {1, 1}, kSites, CheckSparseConv},
    {Node::kBatchNorm, {1, 1}, kAny, CheckBatchNorm},
    {Node::kLinear, {1, 1}, kAny, CheckLinear},
    {Node::kActivation, {1, 1}, kAny, CheckActivation},
    {Node::kAdd, {2, 2}, kAny, CheckAdd},
    {Node::kConcat, {2, kAnyNumber}, kAny, CheckConcat},
    {Node::kVoxelToPoint, {2, 2}, kAny, CheckVoxelToPoint},
    {Node::kArgmax, {1, 1}, kAny, CheckArgmax},
    {Node::kPool, {1, 1}, kSites, CheckPool},
    {Node::kGlobalPool, {1, 1}, kSites, CheckGlobalPool},
    {Node::kBroadcast, {2, 2}, kSites, CheckBroadcast},
    {Node::kInstanceNorm, {1, 1}, kSites, CheckInstanceNorm},
    {Node::kGroupNorm, {1, 1}, kSites, CheckGroupNorm},
    {Node::kFarthestPointSample, {0, 0}, kAny, CheckFarthestPointSample},
    {Node::kToDense, {1, 1}, kSites, CheckToDense},
    {Node::kToBev, {1, 1}, kSites, CheckToBev},
    {Node::kFromDense, {1, 1}, kAny, CheckFromDense},
    {Node::kConv2D, {1, 1}, kAny, CheckConv2d},
    {Node::kConvTranspose2D, {1, 1}, kAny, CheckConvTranspose2d},
    {Node::kCenterHeadDecode, {5, 7}, kAny, CheckCenterHeadDecode},
    {Node::kAnchorHeadDecode, {3, 3}, kAny, CheckAnchorHeadDecode},
    {Node::kNms, {1, kernels::kMaxNmsInputs}, kAny, CheckNms},
    {Node::kCrop, {1, 1}, kSites, CheckCrop},
    {Node::kPrune, {2, 2}, kSites, CheckPrune},
    {Node::kPointFeatures, {1, 1}, kAny, CheckPointFeatures},
    {Node::kPointToVoxel, {1, 3}, kAny, CheckPointToVoxel},
    {Node::kDevoxelize, {2, 2}, kSites, CheckDevoxelize},

    {Node::kMultiply, {2, 2}, kAny, CheckMultiply},
    {Node::kElementwise, {2, 2}, kAny, CheckElementwise},
    {Node::kRowReduce, {1, 1}, kAny, CheckRowReduce},
    {Node::kSiteCoordinates, {1, 1}, kSites, CheckSiteCoordinates},
    {Node::kSoftmax, {1, 1}, kAny, CheckSoftmax},
    {Node::kLayerNorm, {1, 1}, kAny, CheckLayerNorm},
    {Node::kL2Norm, {1, 1}, kAny, CheckL2Norm},
    {Node::kPrelu, {1, 1}, kAny, CheckPRelu},
    {Node::kEmbedding, {1, 1}, kAny, CheckEmbedding},

    {Node::kSampleRows, {0, 0}, kAny, CheckSampleRows},
    {Node::kAttention, {3, 3}, kAny, CheckAttention},
    {Node::kGroups, {1, 1}, kSites, CheckGroups},
    {Node::kRotary, {1, 2}, kSites, CheckRotary},
    {Node::kSitePosition, {1, 1}, kAny, CheckSitePosition},

    {Node::kMaxPool2D, {1, 1}, kAny, CheckMaxPool2d},
    {Node::kPointOffsets, {1, 1}, kAny, CheckPointOffsets},

    {Node::kSelect, {1, 1}, kAny, CheckSelect},
    {Node::kGather, {1, 2}, kAny, CheckGather},
    {Node::kConstant, {0, 0}, kAny, CheckConstant},
    {Node::kQueryDecode, {6, 7}, kAny, CheckQueryDecode},
};

}  // namespace

const OperatorRow* FindOperator(Node::OpCase op) {
  const auto* const row =
      std::find_if(std::begin(kOperators), std::end(kOperators), [op](const OperatorRow& o) { return o.op == op; });
  return row == std::end(kOperators) ? nullptr : row;
}

}  // namespace voxserve
