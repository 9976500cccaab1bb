#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <variant>

#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"
#include "kernels/rows/attention/attention.h"
#include "kernels/rows/rotary.h"

namespace voxserve {
namespace {

constexpr uint32_t kMaxSampleRows = 4096;
constexpr uint32_t kMaxHeads = 64;
static_assert(kernels::kMaxAttentionHeadChannels <= kernels::kMaxRotaryHeadChannels);

// Returns the number of heads. If there are too many, reports a problem and returns 0.
int ReadHeads(uint32_t num_heads, const ProblemsAt& at) {
  if (num_heads <= kMaxHeads) return num_heads == 0 ? 1 : static_cast<int>(num_heads);
  at.Add("num_heads is ", num_heads, "; it must be 1 to ", kMaxHeads);
  return 0;
}

// Returns true if the heads divide the input's channels equally, and no head has more channels than the kernels
// support; otherwise reports a problem.
bool CutsIntoHeads(const GraphNode& input, int num_heads, const ProblemsAt& at) {
  if (input.channels % num_heads != 0) {
    at.Add("num_heads is ", num_heads, ", which does not divide the ", input.channels, " channels of ",
           Quoted(input.name));
    return false;
  }
  if (input.channels / num_heads > kernels::kMaxAttentionHeadChannels) {
    at.Add("each of its heads has ", input.channels / num_heads, " channels of ", Quoted(input.name), "; at most ",
           kernels::kMaxAttentionHeadChannels, " are possible");
    return false;
  }
  return true;
}

// Returns true if the rows and channels of the three inputs match; otherwise reports a problem.
bool MatchInputs(const GraphNode& queries, const GraphNode& keys, const GraphNode& values, const ProblemsAt& at) {
  if (keys.level == kPointLevel) {
    at.Add("its keys ", Quoted(keys.name), " have ", RowsText(keys),
           "; they need one row per site, or rows of samples");
    return false;
  }
  if (!values.HasRowsOf(keys)) {
    at.Add("its keys ", Quoted(keys.name), " and values ", Quoted(values.name), " have different rows");
    return false;
  }
  if (queries.channels != keys.channels) {
    at.Add("its queries ", Quoted(queries.name), " have ", queries.channels, " channels and its keys ",
           Quoted(keys.name), " ", keys.channels);
    return false;
  }
  return true;
}

// Sets the groups within which the attention stays, if it names any. Returns false if they do not fit its inputs, and
// reports a problem unless it was reported before. The inputs are queries, keys and values.
bool PlaceInGroups(std::initializer_list<const GraphNode*> inputs, AttentionOp* op, NodeContext& context) {
  if (context.proto.attention().groups_of().empty()) return true;
  const GraphNode* const groups = context.KnownPartner();
  if (groups == nullptr) return false;
  op->groups_of = context.partner;
  if (!std::holds_alternative<GroupsOp>(groups->op)) {
    context.at.Add("groups_of ", Quoted(groups->name), " is not a groups");
    return false;
  }
  for (const GraphNode* const input : inputs) {
    if (input->level == groups->level) continue;
    context.at.Add("its input ", Quoted(input->name), " is not on the sites of groups_of ", Quoted(groups->name));
    return false;
  }
  return true;
}

}  // namespace

void CheckSampleRows(NodeContext& context) {
  const model::v1::SampleRows& proto = context.proto.sample_rows();
  const uint32_t num_rows = proto.num_rows(), channels = proto.channels();
  const bool has_rows = num_rows >= 1 && num_rows <= kMaxSampleRows;
  const bool has_channels = channels >= 1 && channels <= static_cast<uint32_t>(kMaxChannels);
  if (!has_rows) context.at.Add("num_rows is ", num_rows, "; it must be 1 to ", kMaxSampleRows);
  if (!has_channels) context.at.Add("channels is ", channels, "; it must be 1 to ", kMaxChannels);
  SampleRowsOp op;
  op.weight =
      context.ReadTensor("weight", {has_rows ? num_rows : kUnknownSize, has_channels ? channels : kUnknownSize});
  context.node.op = std::move(op);
  if (!has_rows || !has_channels) return;
  context.node.level = kSampleLevel;
  context.node.channels = static_cast<int>(channels);
  if (num_rows > 1) context.node.grid = GridShape{.dimension = 1, .size = {static_cast<int32_t>(num_rows), 1, 1, 1}};
}

void CheckRotary(NodeContext& context) {
  const model::v1::Rotary& proto = context.proto.rotary();
  const RotaryOp op{.num_heads = ReadHeads(proto.num_heads(), context.at), .base = proto.base()};
  context.node.op = op;
  if (!std::isfinite(op.base) || op.base <= 0) {
    context.at.Add("base is ", op.base, "; it must be finite and above 0");
  }
  const GraphNode* const input = context.FeaturesInput(0);
  if (context.node.inputs.size() > 1) {
    const GraphNode* const positions = context.FeaturesInput(1);
    if (positions == nullptr || input == nullptr) return;
    if (!positions->HasRowsOf(*input)) {
      context.at.Add("its positions ", Quoted(positions->name), " and its rows ", Quoted(input->name),
                     " are not on the same sites");
      return;
    }
    if (positions->channels != context.graph.dimension) {
      context.at.Add("its positions ", Quoted(positions->name), " have ", positions->channels,
                     " channels; they need one for each of the ", context.graph.dimension, " axes");
      return;
    }
  }
  if (op.num_heads == 0 || input == nullptr || !CutsIntoHeads(*input, op.num_heads, context.at)) return;
  const int channels = input->channels / op.num_heads, multiple = 2 * context.graph.dimension;
  if (channels % multiple != 0) {
    context.at.Add("each of its heads has ", channels, " channels of ", Quoted(input->name),
                   "; they must be a multiple of ", multiple, ", a pair for each axis");
    return;
  }
  context.node.TakeRowsOf(*input);
  context.node.channels = input->channels;
}

void CheckAttention(NodeContext& context) {
  const model::v1::Attention& proto = context.proto.attention();
  AttentionOp op{.num_heads = ReadHeads(proto.num_heads(), context.at)};
  if (proto.has_scale()) op.scale = proto.scale();
  if (!std::isfinite(op.scale)) context.at.Add("scale is ", op.scale, "; it must be finite");
  const GraphNode* const queries = context.FeaturesInput(0);
  const GraphNode* const keys = context.FeaturesInput(1);
  const GraphNode* const values = context.FeaturesInput(2);
  if (op.num_heads > 0 && queries != nullptr && keys != nullptr && values != nullptr &&
      MatchInputs(*queries, *keys, *values, context.at) && PlaceInGroups({queries, keys, values}, &op, context) &&
      CutsIntoHeads(*keys, op.num_heads, context.at) && CutsIntoHeads(*values, op.num_heads, context.at)) {
    if (!proto.has_scale()) op.scale = 1.0f / std::sqrt(static_cast<float>(keys->channels / op.num_heads));
    context.node.TakeRowsOf(*queries);
    context.node.channels = values->channels;
  }
  context.node.op = op;
}

}  // namespace voxserve
