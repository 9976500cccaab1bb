#include <cmath>
#include <optional>
#include <utility>

#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"

namespace voxserve {
namespace {

using model::v1::Pool;

std::optional<kernels::PoolReduce> ReduceOf(Pool::Reduce reduce) {
  switch (reduce) {
    case Pool::REDUCE_MAX:
      return kernels::PoolReduce::kMax;
    case Pool::REDUCE_AVERAGE:
      return kernels::PoolReduce::kAverage;
    case Pool::REDUCE_SUM:
      return kernels::PoolReduce::kSum;
    default:
      return std::nullopt;
  }
}

// Returns a convolution with the pool's geometry, so that one reader checks both.
model::v1::SparseConv ConvolutionOf(const Pool& pool) {
  model::v1::SparseConv conv;
  conv.set_kind(pool.kind());
  *conv.mutable_kernel_size() = pool.kernel_size();
  *conv.mutable_stride() = pool.stride();
  *conv.mutable_dilation() = pool.dilation();
  *conv.mutable_padding() = pool.padding();
  conv.set_rule(pool.rule());
  conv.set_paired_with(pool.paired_with());
  *conv.mutable_lower_bound() = pool.lower_bound();
  *conv.mutable_upper_bound() = pool.upper_bound();
  return conv;
}

// Reads the kind, the reduce function and, unless the pool is an inverse, the sites of a pool.
std::optional<PoolOp> ReadPool(const Pool& proto, int dimension, const ProblemsAt& at) {
  const std::optional<kernels::PoolReduce> reduce = ReadReduce(proto.reduce(), at);
  using model::v1::SparseConv;
  if (proto.kind() != SparseConv::KIND_SUBMANIFOLD && proto.kind() != SparseConv::KIND_STRIDED &&
      proto.kind() != SparseConv::KIND_INVERSE && proto.kind() != SparseConv::KIND_TRANSPOSED) {
    at.Add("kind must be KIND_SUBMANIFOLD, KIND_STRIDED, KIND_INVERSE or KIND_TRANSPOSED");
    return std::nullopt;
  }
  const std::optional<SparseConvOp> conv = ReadSparseConv(ConvolutionOf(proto), dimension, at);
  if (!reduce || !conv) return std::nullopt;
  return PoolOp{.reduce = *reduce, .kind = conv->kind, .sites = conv->sites};
}

// Returns a parameter of a generalised mean: `value`, or `preset` if the file does not have it. Reports a value that is
// not positive and finite.
float ReadPositive(const char* name, bool is_there, float value, float preset, const ProblemsAt& at) {
  if (!is_there) return preset;
  if (!std::isfinite(value) || value <= 0) at.Add(name, " is ", value, "; it must be finite and above 0");
  return value;
}

GlobalPoolOp ReadGlobalPool(const model::v1::GlobalPool& proto, const ProblemsAt& at) {
  constexpr float kDefaultExponent = 3, kDefaultEpsilon = 1e-6f;
  if (proto.reduce() != Pool::REDUCE_GENERALISED_MEAN) {
    if (proto.has_exponent()) at.Add("exponent belongs to REDUCE_GENERALISED_MEAN alone");
    if (proto.has_epsilon()) at.Add("epsilon belongs to REDUCE_GENERALISED_MEAN alone");
    const std::optional<kernels::PoolReduce> reduce = ReduceOf(proto.reduce());
    if (!reduce) at.Add("reduce must be REDUCE_MAX, REDUCE_AVERAGE, REDUCE_SUM or REDUCE_GENERALISED_MEAN");
    return {.reduce = reduce.value_or(kernels::PoolReduce::kMax)};
  }
  return {.reduce = kernels::PoolReduce::kAverage,
          .exponent = ReadPositive("exponent", proto.has_exponent(), proto.exponent(), kDefaultExponent, at),
          .epsilon = ReadPositive("epsilon", proto.has_epsilon(), proto.epsilon(), kDefaultEpsilon, at)};
}

}  // namespace

std::optional<kernels::PoolReduce> ReadReduce(Pool::Reduce reduce, const ProblemsAt& at) {
  const std::optional<kernels::PoolReduce> read = ReduceOf(reduce);
  if (reduce == Pool::REDUCE_GENERALISED_MEAN) {
    at.Add("reduce is REDUCE_GENERALISED_MEAN, which global_pool alone has");
    return std::nullopt;
  }
  if (!read) at.Add("reduce must be REDUCE_MAX, REDUCE_AVERAGE or REDUCE_SUM");
  return read;
}

void CheckPool(NodeContext& context) {
  std::optional<PoolOp> op = ReadPool(context.proto.pool(), context.graph.dimension, context.at);
  const GraphNode* const input = context.FeaturesInput(0);
  context.node.op = PoolOp();
  if (!op || input == nullptr) return;
  bool is_placed = true;
  if (op->kind == SparseConvOp::Kind::kSubmanifold) {
    context.node.level = input->level;
    op->rulebook = context.graph.levels.Rulebook(input->level, input->level, op->sites.geometry);
  } else {
    SparseConvOp conv{.kind = op->kind, .sites = op->sites};
    is_placed = op->kind == SparseConvOp::Kind::kInverse ? PlaceInverse(*input, &conv, context)
                                                         : PlaceOnNewSites(*input, &conv, context);
    op->sites = conv.sites;
    op->paired_with = conv.paired_with;
    op->rulebook = conv.rulebook;
  }
  if (is_placed) context.node.channels = input->channels;
  context.node.op = *std::move(op);
}

void CheckGlobalPool(NodeContext& context) {
  context.node.op = ReadGlobalPool(context.proto.global_pool(), context.at);
  const GraphNode* const input = context.FeaturesInput(0);
  if (input == nullptr) return;
  context.node.level = kSampleLevel;
  context.node.channels = input->channels;
}

void CheckBroadcast(NodeContext& context) {
  using model::v1::Broadcast;
  BroadcastOp op;
  switch (context.proto.broadcast().function()) {
    case Broadcast::FUNCTION_ADD:
      break;
    case Broadcast::FUNCTION_MULTIPLY:
      op.function = BroadcastOp::Function::kMultiply;
      break;
    case Broadcast::FUNCTION_CONCAT:
      op.function = BroadcastOp::Function::kConcat;
      break;
    default:
      context.at.Add("function must be FUNCTION_ADD, FUNCTION_MULTIPLY or FUNCTION_CONCAT");
  }
  context.node.op = op;
  const GraphNode* const sites = context.FeaturesInput(0);
  const GraphNode* const samples = context.FeaturesInput(1);
  if (samples != nullptr && (samples->level != kSampleLevel || samples->grid)) {
    context.at.Add("its second input ", Quoted(samples->name), " has ", RowsText(*samples),
                   "; it needs one per sample, as global_pool makes");
    return;
  }
  if (sites == nullptr || samples == nullptr) return;
  const bool is_concat = op.function == BroadcastOp::Function::kConcat;
  if (!is_concat && sites->channels != samples->channels) {
    context.at.Add("brings ", samples->channels, " channels of ", Quoted(samples->name), " to ", sites->channels,
                   " of ", Quoted(sites->name));
    return;
  }
  const int64_t channels = int64_t{sites->channels} + (is_concat ? samples->channels : 0);
  if (channels > kMaxChannels) {
    context.at.Add("has ", channels, " channels; at most ", kMaxChannels, " are possible");
    return;
  }
  context.node.level = sites->level;
  context.node.channels = static_cast<int>(channels);
}

}  // namespace voxserve
