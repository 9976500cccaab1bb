#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"
#include "kernels/rows/embedding.h"

namespace voxserve {
namespace {

constexpr float kLayerNormEpsilon = 1e-5f;  // PyTorch's
constexpr float kL2NormEpsilon = 1e-12f;    // PyTorch's

float CheckedEpsilon(bool is_there, float epsilon, float preset, const NodeContext& context) {
  if (!is_there) return preset;
  if (std::isfinite(epsilon) && epsilon > 0) return epsilon;
  context.at.Add("epsilon is ", epsilon, "; it must be finite and above 0");
  return preset;
}

std::optional<kernels::Elementwise> FunctionOf(model::v1::Elementwise::Function function) {
  using model::v1::Elementwise;
  switch (function) {
    case Elementwise::FUNCTION_ADD:
      return kernels::Elementwise::kAdd;
    case Elementwise::FUNCTION_SUBTRACT:
      return kernels::Elementwise::kSubtract;
    case Elementwise::FUNCTION_MULTIPLY:
      return kernels::Elementwise::kMultiply;
    case Elementwise::FUNCTION_DIVIDE:
      return kernels::Elementwise::kDivide;
    case Elementwise::FUNCTION_MAXIMUM:
      return kernels::Elementwise::kMaximum;
    case Elementwise::FUNCTION_MINIMUM:
      return kernels::Elementwise::kMinimum;
    default:
      return std::nullopt;
  }
}

std::optional<kernels::RowNorm> KindOf(model::v1::RowReduce::Function function) {
  using model::v1::RowReduce;
  switch (function) {
    case RowReduce::FUNCTION_SUM:
      return kernels::RowNorm::kSum;
    case RowReduce::FUNCTION_MEAN:
      return kernels::RowNorm::kMean;
    case RowReduce::FUNCTION_MAX:
      return kernels::RowNorm::kMax;
    case RowReduce::FUNCTION_MIN:
      return kernels::RowNorm::kMin;
    case RowReduce::FUNCTION_LENGTH:
      return kernels::RowNorm::kLength;
    default:
      return std::nullopt;
  }
}

// Gives the node the rows and the number of channels of its input.
void TakeRowsAndChannels(const GraphNode* input, NodeContext& context) {
  if (input == nullptr) return;
  context.node.TakeRowsOf(*input);
  context.node.channels = input->channels;
}

}  // namespace

void ReadAxisValues(const char* name, const google::protobuf::RepeatedField<float>& values, float* to,
                    const NodeContext& context) {
  if (values.empty()) return;
  if (values.size() != context.graph.dimension) {
    context.at.Add(name, " has ", values.size(), " values; it needs one for each of the ", context.graph.dimension,
                   " axes, or none");
    return;
  }
  for (const float value : values) {
    if (!std::isfinite(value)) context.at.Add(name, " has the value ", value, "; it must be finite");
    *to++ = value;
  }
}

void CheckMultiply(NodeContext& context) {
  context.node.op = ElementwiseOp();
  switch (context.proto.multiply().sites()) {
    case model::v1::SITES_UNSPECIFIED:
    case model::v1::SITES_SAME:
      break;
    case model::v1::SITES_UNION:
      context.at.Add("sites is SITES_UNION; a product is 0 where one of its inputs has no site, so both need the same");
      return;
    default:
      context.at.Add("sites must be SITES_SAME");
      return;
  }
  const std::vector<const GraphNode*> inputs = context.FeaturesOnOneLevel();
  if (inputs.empty()) return;
  if (inputs[0]->channels != inputs[1]->channels) {
    context.at.Add("multiplies ", inputs[0]->channels, " channels of ", Quoted(inputs[0]->name), " and ",
                   inputs[1]->channels, " of ", Quoted(inputs[1]->name));
    return;
  }
  TakeRowsAndChannels(inputs[0], context);
}

void CheckElementwise(NodeContext& context) {
  const model::v1::Elementwise& proto = context.proto.elementwise();
  const std::optional<kernels::Elementwise> function = FunctionOf(proto.function());
  if (!function) {
    context.at.Add("function must be FUNCTION_ADD, FUNCTION_SUBTRACT, FUNCTION_MULTIPLY, FUNCTION_DIVIDE, ",
                   "FUNCTION_MAXIMUM or FUNCTION_MINIMUM");
  }
  if (proto.has_epsilon() && function != kernels::Elementwise::kDivide) {
    context.at.Add("epsilon belongs to FUNCTION_DIVIDE alone");
  } else if (!std::isfinite(proto.epsilon())) {
    context.at.Add("epsilon is ", proto.epsilon(), "; it must be finite");
  }
  context.node.op =
      ElementwiseOp{.function = function.value_or(kernels::Elementwise::kAdd), .epsilon = proto.epsilon()};
  const std::vector<const GraphNode*> inputs = context.FeaturesOnOneLevel();
  if (inputs.empty()) return;
  const auto [fewer, more] = std::minmax(inputs[0]->channels, inputs[1]->channels);
  if (fewer != more && fewer != 1) {
    context.at.Add("combines ", inputs[0]->channels, " channels of ", Quoted(inputs[0]->name), " and ",
                   inputs[1]->channels, " of ", Quoted(inputs[1]->name), "; both need as many, or one of them 1");
    return;
  }
  context.node.TakeRowsOf(*inputs[0]);
  context.node.channels = more;
}

void CheckRowReduce(NodeContext& context) {
  const std::optional<kernels::RowNorm> kind = KindOf(context.proto.row_reduce().function());
  if (!kind) {
    context.at.Add("function must be FUNCTION_SUM, FUNCTION_MEAN, FUNCTION_MAX, FUNCTION_MIN or FUNCTION_LENGTH");
  }
  context.node.op = RowNormOp{.kind = kind.value_or(kernels::RowNorm::kSum)};
  const GraphNode* const input = context.FeaturesInput(0);
  if (input == nullptr) return;
  context.node.TakeRowsOf(*input);
  context.node.channels = 1;
}

void CheckSiteCoordinates(NodeContext& context) {
  const model::v1::SiteCoordinates& proto = context.proto.site_coordinates();
  SiteCoordinatesOp op;
  ReadAxisValues("scale", proto.scale(), op.parameters.scale, context);
  ReadAxisValues("shift", proto.shift(), op.parameters.shift, context);
  if (proto.window_shape_size() > 0 || proto.window_shift_size() > 0) {
    ReadWindow("window_shape", proto.window_shape(), "window_shift", proto.window_shift(), &op.parameters.window_shape,
               &op.parameters.window_shift, context);
  }
  context.node.op = op;
  const GraphNode* const input = context.FeaturesInput(0);
  if (input == nullptr) return;
  context.node.TakeRowsOf(*input);
  context.node.channels = context.graph.dimension;
}

void CheckSoftmax(NodeContext& context) {
  context.node.op = RowNormOp{.kind = kernels::RowNorm::kSoftmax};
  TakeRowsAndChannels(context.FeaturesInput(0), context);
}

void CheckLayerNorm(NodeContext& context) {
  const model::v1::LayerNorm& proto = context.proto.layer_norm();
  RowNormOp op{.kind = kernels::RowNorm::kLayerNorm,
               .epsilon = CheckedEpsilon(proto.has_epsilon(), proto.epsilon(), kLayerNormEpsilon, context)};
  const GraphNode* const input = context.FeaturesInput(0);
  if (proto.affine()) {
    const int64_t channels = input == nullptr ? kUnknownSize : input->channels;
    op.weight = context.ReadTensor("weight", {channels});
    op.bias = context.ReadTensor("bias", {channels});
  }
  TakeRowsAndChannels(input, context);
  context.node.op = std::move(op);
}

void CheckL2Norm(NodeContext& context) {
  const model::v1::L2Norm& proto = context.proto.l2_norm();
  context.node.op = RowNormOp{.kind = kernels::RowNorm::kL2,
                              .epsilon = CheckedEpsilon(proto.has_epsilon(), proto.epsilon(), kL2NormEpsilon, context)};
  TakeRowsAndChannels(context.FeaturesInput(0), context);
}

void CheckPRelu(NodeContext& context) {
  const GraphNode* const input = context.FeaturesInput(0);
  PReluOp op{.slopes = context.ReadTensor("weight", {kUnknownSize})};
  TakeRowsAndChannels(input, context);
  if (op.slopes != nullptr && input != nullptr) {
    const int64_t num_slopes = op.slopes->shape[0];
    if (num_slopes != 1 && num_slopes != input->channels) {
      context.at.Add("has ", num_slopes, " slopes; it needs 1 or one for each of the ", input->channels,
                     " channels of ", Quoted(input->name));
    }
  }
  context.node.op = std::move(op);
}

void CheckEmbedding(NodeContext& context) {
  const uint32_t channel = context.proto.embedding().channel();
  const GraphNode* const input = context.FeaturesInput(0);
  EmbeddingOp op{.table = context.ReadTensor("weight", {kUnknownSize, kUnknownSize})};
  if (input != nullptr && channel >= static_cast<uint32_t>(input->channels)) {
    context.at.Add("channel is ", channel, "; its input ", Quoted(input->name), " has ", input->channels, " channels");
  } else {
    op.channel = static_cast<int>(channel);
  }
  if (op.table != nullptr) {
    const int64_t num_embeddings = op.table->shape[0], channels = op.table->shape[1];
    if (num_embeddings < 1 || num_embeddings > kernels::kMaxEmbeddingRows) {
      context.at.Add("its table has ", num_embeddings, " rows; 1 to ", kernels::kMaxEmbeddingRows, " are possible");
    }
    if (channels < 1 || channels > kMaxChannels) {
      context.at.Add("has ", channels, " channels; 1 to ", kMaxChannels, " are possible");
    } else if (input != nullptr) {
      context.node.TakeRowsOf(*input);
      context.node.channels = static_cast<int>(channels);
    }
  }
  context.node.op = std::move(op);
}

}  // namespace voxserve
