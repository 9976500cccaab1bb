#include "engine/model/checks/node_checker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/quoted.h"
#include "engine/model/node_parameters.h"
#include "kernels/boxes/rotated_nms.h"

namespace voxserve {
namespace {

using model::v1::Node;

constexpr size_t kAnyNumber = std::numeric_limits<size_t>::max();

struct InputCount {
  size_t least;
  size_t most;
};

InputCount InputCountOf(Node::OpCase op) {
  switch (op) {
    case Node::kFarthestPointSample:
      return {0, 0};
    case Node::kVoxelize:
      return {0, 1};
    case Node::kAdd:
    case Node::kVoxelToPoint:
    case Node::kBroadcast:
    case Node::kDevoxelize:
    case Node::kPrune:
      return {2, 2};
    case Node::kPointToVoxel:
      return {1, 2};
    case Node::kConcat:
      return {2, kAnyNumber};
    case Node::kCenterHeadDecode:
      return {5, 6};
    case Node::kAnchorHeadDecode:
      return {3, 3};
    case Node::kNms:
      return {1, kernels::kMaxNmsInputs};
    case Node::OP_NOT_SET:
      return {0, kAnyNumber};
    default:
      return {1, 1};
  }
}

// True for operators whose first input must have a row a site.
bool ReadsSites(Node::OpCase op) {
  switch (op) {
    case Node::kSparseConv:
    case Node::kPool:
    case Node::kGlobalPool:
    case Node::kBroadcast:
    case Node::kInstanceNorm:
    case Node::kGroupNorm:
    case Node::kDevoxelize:
    case Node::kToDense:
    case Node::kToBev:
    case Node::kCrop:
    case Node::kPrune:
      return true;
    default:
      return false;
  }
}

}  // namespace

void NodeChecker::Check(const Node& proto, std::vector<int> inputs, int partner, const ProblemsAt& at) {
  GraphNode node = {.name = proto.name(), .inputs = std::move(inputs)};
  const InputCount count = InputCountOf(proto.op_case());
  if (node.inputs.size() < count.least || node.inputs.size() > count.most) {
    at.Add("has ", node.inputs.size(), " inputs; it needs ", count.least,
           count.most == kAnyNumber   ? " or more"
           : count.most > count.least ? absl::StrCat(" to ", count.most)
                                      : "");
    node.inputs.assign(count.least, -1);
  }
  if (ReadsSites(proto.op_case())) {
    const GraphNode* const input = Known(node, 0);
    if (input != nullptr && input->level < 0) {
      at.Add("its input ", Quoted(input->name), " has ", RowsText(*input), "; it needs sites");
      node.inputs[0] = -1;
    }
  }
  switch (proto.op_case()) {
    case Node::kVoxelize:
      CheckVoxelize(proto.voxelize(), &node, at);
      break;
    case Node::kSparseConv:
      CheckSparseConv(proto.sparse_conv(), partner, &node, at);
      break;
    case Node::kBatchNorm:
      CheckBatchNorm(proto.batch_norm(), &node, at);
      break;
    case Node::kLinear:
      CheckLinear(proto.linear(), &node, at);
      break;
    case Node::kActivation:
      CheckActivation(proto.activation(), &node, at);
      break;
    case Node::kAdd:
      CheckAdd(proto.add(), &node, at);
      break;
    case Node::kConcat:
      CheckConcat(proto.concat(), &node, at);
      break;
    case Node::kVoxelToPoint:
      CheckVoxelToPoint(&node, at);
      break;
    case Node::kArgmax:
      CheckArgmax(&node, at);
      break;
    case Node::kPool:
      CheckPool(proto.pool(), partner, &node, at);
      break;
    case Node::kGlobalPool:
      CheckGlobalPool(proto.global_pool(), &node, at);
      break;
    case Node::kBroadcast:
      CheckBroadcast(proto.broadcast(), &node, at);
      break;
    case Node::kInstanceNorm:
      CheckInstanceNorm(proto.instance_norm(), &node, at);
      break;
    case Node::kGroupNorm:
      CheckGroupNorm(proto.group_norm(), &node, at);
      break;
    case Node::kFarthestPointSample:
      CheckFarthestPointSample(proto.farthest_point_sample(), &node, at);
      break;
    case Node::kPointFeatures:
      CheckPointFeatures(&node, at);
      break;
    case Node::kPointToVoxel:
      CheckPointToVoxel(proto.point_to_voxel(), partner, &node, at);
      break;
    case Node::kDevoxelize:
      CheckDevoxelize(&node, at);
      break;
    case Node::kCrop:
      CheckCrop(proto.crop(), &node, at);
      break;
    case Node::kPrune:
      CheckPrune(proto.prune(), &node, at);
      break;
    case Node::kToDense:
      CheckToDense(/*is_from_above=*/false, &node, at);
      break;
    case Node::kToBev:
      CheckToDense(/*is_from_above=*/true, &node, at);
      break;
    case Node::kFromDense:
      CheckFromDense(proto.from_dense(), partner, &node, at);
      break;
    case Node::kConv2D:
      CheckConv2d(proto.conv2d(), &node, at);
      break;
    case Node::kConvTranspose2D:
      CheckConvTranspose2d(proto.conv_transpose2d(), &node, at);
      break;
    case Node::kCenterHeadDecode:
      CheckCenterHeadDecode(proto.center_head_decode(), &node, at);
      break;
    case Node::kAnchorHeadDecode:
      CheckAnchorHeadDecode(proto.anchor_head_decode(), &node, at);
      break;
    case Node::kNms:
      CheckNms(proto.nms(), &node, at);
      break;
    case Node::OP_NOT_SET:
      at.Add("has no operator");
      break;
  }
  graph_.nodes.push_back(std::move(node));
}

void NodeChecker::CheckVoxelize(const model::v1::Voxelize& proto, GraphNode* node, const ProblemsAt& at) {
  std::optional<VoxelizeOp> op = ReadVoxelize(proto, graph_.dimension, at);
  if (has_voxelize_) {
    at.Add("is the second voxelize; node ", Quoted(graph_.nodes[graph_.voxelize].name), " is the first");
    node->op = VoxelizeOp();
    return;
  }
  const GraphNode* const input = node->inputs.empty() ? nullptr : Known(*node, 0);
  if (op && input != nullptr) {
    const auto* const sample = std::get_if<FarthestPointSampleOp>(&input->op);
    if (sample == nullptr) {
      at.Add("its input ", Quoted(input->name), " is not a farthest_point_sample");
    } else if (!BeginsWithSpatialAxes(*op)) {
      at.Add("its input ", Quoted(input->name), " needs axes that begin with x, y and z; they are ",
             absl::StrJoin(op->axes, ", "));
    } else {
      op->sample = sample->points;
    }
  }
  has_voxelize_ = true;
  graph_.voxelize = static_cast<int>(graph_.nodes.size());
  graph_.levels = LevelTable(op ? op->grid_shape : std::nullopt);
  is_grid_unknown_ = !op;
  node->channels = std::min(proto.features_size(), kMaxChannels);
  node->op = op ? *std::move(op) : VoxelizeOp();
}

void NodeChecker::CheckFarthestPointSample(const model::v1::FarthestPointSampling& proto, GraphNode* node,
                                           const ProblemsAt& at) {
  node->op = ReadFarthestPointSample(proto, at).value_or(FarthestPointSampleOp());
  node->level = kPointLevel;
  node->channels = 1;
}

void NodeChecker::CheckBatchNorm(const model::v1::BatchNorm& proto, GraphNode* node, const ProblemsAt& at) {
  BatchNormOp op;
  if (proto.has_epsilon()) op.epsilon = proto.epsilon();
  if (!std::isfinite(op.epsilon) || op.epsilon < 0) {
    at.Add("epsilon is ", op.epsilon, "; it must be finite and not negative");
    op.epsilon = BatchNormOp().epsilon;
  }
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  const int64_t channels = input == nullptr ? kUnknownSize : input->channels;
  op.weight = weights_.Read(node->name, "weight", {channels});
  op.bias = weights_.Read(node->name, "bias", {channels});
  op.running_mean = weights_.Read(node->name, "running_mean", {channels});
  op.running_var = weights_.Read(node->name, "running_var", {channels});
  if (op.running_var != nullptr) {
    const std::vector<float>& variances = op.running_var->values;
    const auto bad = std::find_if(variances.begin(), variances.end(),
                                  [&](float variance) { return variance < 0 || variance + op.epsilon <= 0; });
    if (bad != variances.end()) {
      at.Add("running_var[", bad - variances.begin(), "] is ", *bad, " and epsilon ", op.epsilon,
             "; variances must not be negative, and their sum with epsilon above 0");
    }
  }
  if (input != nullptr) {
    node->TakeRowsOf(*input);
    node->channels = input->channels;
  }
  node->op = std::move(op);
}

void NodeChecker::CheckLinear(const model::v1::Linear& proto, GraphNode* node, const ProblemsAt& at) {
  LinearOp op;
  op.out_channels = ReadOutChannels(proto.out_channels(), at);
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  if (input != nullptr) {
    op.in_channels = input->channels;
    node->TakeRowsOf(*input);
    node->channels = op.out_channels;
  }
  op.weight = weights_.Read(node->name, "weight", {SizeOrUnknown(op.out_channels), SizeOrUnknown(op.in_channels)});
  if (proto.bias()) op.bias = weights_.Read(node->name, "bias", {SizeOrUnknown(op.out_channels)});
  node->op = std::move(op);
}

void NodeChecker::CheckActivation(const model::v1::Activation& proto, GraphNode* node, const ProblemsAt& at) {
  node->op = ReadActivation(proto, at).value_or(ActivationOp());
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  if (input == nullptr) return;
  node->TakeRowsOf(*input);
  node->channels = input->channels;
}

void NodeChecker::CheckAdd(const model::v1::Add& proto, GraphNode* node, const ProblemsAt& at) {
  AddOp op;
  const std::vector<const GraphNode*> inputs = MeetInputs(proto.sites(), &op.rulebooks, node, at);
  node->op = std::move(op);
  if (inputs.empty()) return;
  if (inputs[0]->channels != inputs[1]->channels) {
    at.Add("adds ", inputs[0]->channels, " channels of ", Quoted(inputs[0]->name), " and ", inputs[1]->channels, " of ",
           Quoted(inputs[1]->name));
    return;
  }
  node->channels = inputs[0]->channels;
}

void NodeChecker::CheckConcat(const model::v1::Concat& proto, GraphNode* node, const ProblemsAt& at) {
  ConcatOp op;
  const std::vector<const GraphNode*> inputs = MeetInputs(proto.sites(), &op.rulebooks, node, at);
  node->op = std::move(op);
  if (inputs.empty()) return;
  int64_t channels = 0;
  for (const GraphNode* input : inputs) channels += input->channels;
  if (channels > kMaxChannels) {
    at.Add("has ", channels, " channels; at most ", kMaxChannels, " are possible");
    return;
  }
  node->channels = static_cast<int>(channels);
}

void NodeChecker::CheckArgmax(GraphNode* node, const ProblemsAt& at) {
  ArgmaxOp op;
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  if (input != nullptr) {
    op.num_classes = input->channels;
    node->TakeRowsOf(*input);
    node->channels = 1;
    if (op.num_classes > kMaxClasses) {
      at.Add("has ", op.num_classes, " classes; at most ", kMaxClasses, " are possible");
    }
  }
  node->is_labels = true;
  node->op = op;
}

const char* NodeChecker::RowsText(const GraphNode& node) {
  if (node.level == kPointLevel) return "a row a point";
  if (node.level >= 0) return "a row a site";
  return node.grid ? "a row a cell" : node.max_boxes > 0 ? "boxes" : "a row a sample";
}

const GraphNode* NodeChecker::Known(const GraphNode& node, size_t input) const {
  const int index = node.inputs[input];
  return index < 0 || graph_.nodes[index].channels == 0 ? nullptr : &graph_.nodes[index];
}

const GraphNode* NodeChecker::FeaturesInput(const GraphNode& node, size_t input, const ProblemsAt& at) const {
  const GraphNode* const source = Known(node, input);
  if (source == nullptr) return nullptr;
  const bool is_sample = std::holds_alternative<FarthestPointSampleOp>(source->op);
  if (!source->is_labels && !is_sample && source->max_boxes == 0) return source;
  at.Add("its input ", Quoted(source->name),
         is_sample           ? " is a sample of points; only voxelize reads that"
         : source->is_labels ? " computes labels; only voxel_to_point reads those"
                             : " computes boxes; only nms and outputs read those");
  return nullptr;
}

std::vector<const GraphNode*> NodeChecker::FeaturesOnOneLevel(const GraphNode& node, const ProblemsAt& at) const {
  std::vector<const GraphNode*> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) inputs.push_back(FeaturesInput(node, i, at));
  if (std::count(inputs.begin(), inputs.end(), nullptr) > 0) return {};
  for (const GraphNode* input : inputs) {
    if (!input->HasRowsOf(*inputs[0])) {
      at.Add("its inputs ", Quoted(inputs[0]->name), " and ", Quoted(input->name),
             input->level >= 0 && inputs[0]->level >= 0 ? " are on different sites" : " have different rows");
      return {};
    }
  }
  return inputs;
}

}  // namespace voxserve
