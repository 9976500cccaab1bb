#include "engine/graph/node_checker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/graph/node_parameters.h"

namespace voxserve {
namespace {

using model::v1::Node;

constexpr int kMaxClasses = 65535;
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
      return {2, 2};
    case Node::kConcat:
      return {2, kAnyNumber};
    case Node::OP_NOT_SET:
      return {0, kAnyNumber};
    default:
      return {1, 1};
  }
}

int64_t SizeOrUnknown(int size) { return size == 0 ? kUnknownSize : size; }

std::string AxesText(const kernels::Axes& axes, int dimension) {
  return absl::StrJoin(axes.begin(), axes.begin() + dimension, " x ");
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
      CheckAdd(&node, at);
      break;
    case Node::kConcat:
      CheckConcat(&node, at);
      break;
    case Node::kVoxelToPoint:
      CheckVoxelToPoint(&node, at);
      break;
    case Node::kArgmax:
      CheckArgmax(&node, at);
      break;
    case Node::kFarthestPointSample:
      CheckFarthestPointSample(proto.farthest_point_sample(), &node, at);
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
  node->is_per_point = true;
  node->channels = 1;
}

void NodeChecker::CheckSparseConv(const model::v1::SparseConv& proto, int partner, GraphNode* node,
                                  const ProblemsAt& at) {
  std::optional<SparseConvOp> op = ReadSparseConv(proto, graph_.dimension, at);
  const int out_channels = ReadOutChannels(proto.out_channels(), at);
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  bool is_placed = false;
  int64_t num_offsets = kUnknownSize;
  if (op) {
    switch (op->kind) {
      case SparseConvOp::Kind::kSubmanifold:
        if (input == nullptr) break;
        node->level = input->level;
        op->rulebook = graph_.levels.Rulebook(input->level, input->level, op->geometry());
        is_placed = true;
        break;
      case SparseConvOp::Kind::kStrided:
        is_placed = input != nullptr && PlaceStrided(*input, &*op, node, at);
        break;
      case SparseConvOp::Kind::kInverse:
        is_placed = input != nullptr && PlaceInverse(*input, partner, &*op, node, at);
        break;
    }
    if (is_placed || op->kind != SparseConvOp::Kind::kInverse) num_offsets = op->geometry().NumOffsets();
  } else {
    op.emplace();
  }
  op->in_channels = input == nullptr ? 0 : input->channels;
  op->out_channels = out_channels;
  op->weight =
      weights_.Read(node->name, "weight", {num_offsets, SizeOrUnknown(op->in_channels), SizeOrUnknown(out_channels)});
  if (proto.bias()) op->bias = weights_.Read(node->name, "bias", {SizeOrUnknown(out_channels)});
  if (is_placed) node->channels = out_channels;
  node->op = *std::move(op);
}

bool NodeChecker::PlaceStrided(const GraphNode& input, SparseConvOp* op, GraphNode* node, const ProblemsAt& at) {
  if (!graph_.levels.CanApply(input.level, op->sites)) {
    const std::optional<kernels::Axes>& shape = graph_.levels.levels()[input.level].spatial_shape;
    if (shape) {
      at.Add("its kernel of ", AxesText(op->geometry().kernel_size, graph_.dimension),
             " does not fit into its input's ", AxesText(*shape, graph_.dimension), " sites");
    } else if (!is_grid_unknown_) {
      at.Add("RULE_PADDED needs a spatial shape: a voxelize with ORIGIN_RANGE, and no RULE_EXPAND in between");
    }
    return false;
  }
  node->level = graph_.levels.Apply(input.level, op->sites);
  op->rulebook = graph_.levels.Rulebook(input.level, node->level, op->geometry());
  return true;
}

bool NodeChecker::PlaceInverse(const GraphNode& input, int partner, SparseConvOp* op, GraphNode* node,
                               const ProblemsAt& at) {
  if (partner < 0) return false;
  const GraphNode& paired = graph_.nodes[partner];
  const auto* const conv = std::get_if<SparseConvOp>(&paired.op);
  if (conv == nullptr || conv->kind != SparseConvOp::Kind::kStrided) {
    // A strided convolution with a problem of its own has channels 0 and stays unnamed here.
    if (conv == nullptr || paired.channels > 0) {
      at.Add("paired_with ", Quoted(paired.name), " is not a sparse_conv of KIND_STRIDED");
    }
    return false;
  }
  if (paired.channels == 0) return false;
  if (input.level != paired.level) {
    at.Add("its input ", Quoted(input.name), " is not on the sites that ", Quoted(paired.name), " makes");
    return false;
  }
  node->level = graph_.levels.rulebooks()[conv->rulebook].in_level;
  op->paired_with = partner;
  op->sites = conv->sites;
  op->rulebook = conv->rulebook;
  return true;
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
    node->level = input->level;
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
    node->level = input->level;
    node->channels = op.out_channels;
  }
  op.weight = weights_.Read(node->name, "weight", {SizeOrUnknown(op.out_channels), SizeOrUnknown(op.in_channels)});
  if (proto.bias()) op.bias = weights_.Read(node->name, "bias", {SizeOrUnknown(op.out_channels)});
  node->op = std::move(op);
}

void NodeChecker::CheckActivation(const model::v1::Activation& proto, GraphNode* node, const ProblemsAt& at) {
  if (proto.function() != model::v1::Activation::FUNCTION_RELU) at.Add("function must be FUNCTION_RELU");
  node->op = ActivationOp{.function = ActivationOp::Function::kRelu};
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  if (input == nullptr) return;
  node->level = input->level;
  node->channels = input->channels;
}

void NodeChecker::CheckAdd(GraphNode* node, const ProblemsAt& at) {
  node->op = AddOp();
  const std::vector<const GraphNode*> inputs = FeaturesOnOneLevel(*node, at);
  if (inputs.empty()) return;
  if (inputs[0]->channels != inputs[1]->channels) {
    at.Add("adds ", inputs[0]->channels, " channels of ", Quoted(inputs[0]->name), " and ", inputs[1]->channels, " of ",
           Quoted(inputs[1]->name));
    return;
  }
  node->level = inputs[0]->level;
  node->channels = inputs[0]->channels;
}

void NodeChecker::CheckConcat(GraphNode* node, const ProblemsAt& at) {
  node->op = ConcatOp();
  const std::vector<const GraphNode*> inputs = FeaturesOnOneLevel(*node, at);
  if (inputs.empty()) return;
  int64_t channels = 0;
  for (const GraphNode* input : inputs) channels += input->channels;
  if (channels > kMaxChannels) {
    at.Add("has ", channels, " channels; at most ", kMaxChannels, " are possible");
    return;
  }
  node->level = inputs[0]->level;
  node->channels = static_cast<int>(channels);
}

void NodeChecker::CheckVoxelToPoint(GraphNode* node, const ProblemsAt& at) {
  node->op = VoxelToPointOp();
  node->is_per_point = true;
  const GraphNode* const voxelize = Known(*node, 1);
  if (voxelize != nullptr && !std::holds_alternative<VoxelizeOp>(voxelize->op)) {
    at.Add("its second input ", Quoted(voxelize->name), " is not the voxelize");
  }
  const GraphNode* const input = Known(*node, 0);
  if (input == nullptr) return;
  if (input->is_per_point) {
    at.Add("its first input ", Quoted(input->name), " has a row a point already");
    return;
  }
  if (input->level != 0) {
    at.Add("its first input ", Quoted(input->name), " is not on the voxelize's sites");
    return;
  }
  node->channels = input->channels;
  node->is_labels = input->is_labels;
}

void NodeChecker::CheckArgmax(GraphNode* node, const ProblemsAt& at) {
  ArgmaxOp op;
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  if (input != nullptr) {
    op.num_classes = input->channels;
    node->level = input->level;
    node->channels = 1;
    if (op.num_classes > kMaxClasses) {
      at.Add("has ", op.num_classes, " classes; at most ", kMaxClasses, " are possible");
    }
  }
  node->is_labels = true;
  node->op = op;
}

const GraphNode* NodeChecker::Known(const GraphNode& node, size_t input) const {
  const int index = node.inputs[input];
  return index < 0 || graph_.nodes[index].channels == 0 ? nullptr : &graph_.nodes[index];
}

const GraphNode* NodeChecker::FeaturesInput(const GraphNode& node, size_t input, const ProblemsAt& at) const {
  const GraphNode* const source = Known(node, input);
  if (source == nullptr || (!source->is_labels && !source->is_per_point)) return source;
  at.Add("its input ", Quoted(source->name),
         source->is_per_point ? " has a row a point; only outputs read that"
                              : " computes labels; only voxel_to_point reads those");
  return nullptr;
}

std::vector<const GraphNode*> NodeChecker::FeaturesOnOneLevel(const GraphNode& node, const ProblemsAt& at) const {
  std::vector<const GraphNode*> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) inputs.push_back(FeaturesInput(node, i, at));
  if (std::count(inputs.begin(), inputs.end(), nullptr) > 0) return {};
  for (const GraphNode* input : inputs) {
    if (input->level != inputs[0]->level) {
      at.Add("its inputs ", Quoted(inputs[0]->name), " and ", Quoted(input->name), " are on different sites");
      return {};
    }
  }
  return inputs;
}

}  // namespace voxserve
