#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"
#include "engine/model/sparse_conv_weight.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/output_coordinates.h"

namespace voxserve {
namespace {

template <typename Axes>
std::string AxesText(const Axes& axes, int dimension) {
  return absl::StrJoin(axes.begin(), axes.begin() + dimension, " x ");
}

// Does the same as PlaceOnNewSites, but places the convolution on the sites of the node that sites_of names.
bool PlaceOnGivenSites(const GraphNode& input, SparseConvOp* op, NodeContext& context) {
  const GraphNode* const known = context.KnownPartner();
  if (known == nullptr) return false;
  const GraphNode& given = *known;
  if (given.level < 0) {
    context.at.Add("sites_of ", Quoted(given.name), " has ", RowsText(given), "; sites are those of voxels");
    return false;
  }
  const bool is_transposed = op->is_swapped();
  const int fine = is_transposed ? given.level : input.level;
  const int coarse = is_transposed ? input.level : given.level;
  if (!context.graph.levels.IsStrideBetween(fine, coarse, op->geometry())) {
    context.at.Add("its stride of ", AxesText(op->geometry().stride, context.graph.dimension),
                   " does not lead from the sites of ", Quoted(is_transposed ? given.name : input.name),
                   " to those of ", Quoted(is_transposed ? input.name : given.name));
    return false;
  }
  context.node.level = given.level;
  op->sites_of = context.partner;
  op->rulebook = context.graph.levels.Rulebook(fine, coarse, op->geometry());
  return true;
}

}  // namespace

void CheckSparseConv(NodeContext& context) {
  const model::v1::SparseConv& proto = context.proto.sparse_conv();
  std::optional<SparseConvOp> op = ReadSparseConv(proto, context.graph.dimension, context.at);
  const int out_channels = ReadOutChannels(proto.out_channels(), context.at);
  const GraphNode* const input = context.FeaturesInput(0);
  bool is_placed = false;
  int64_t num_offsets = kUnknownSize;
  if (op) {
    if (input != nullptr && !proto.sites_of().empty()) {
      is_placed = PlaceOnGivenSites(*input, &*op, context);
    } else if (input != nullptr) {
      switch (op->kind) {
        case SparseConvOp::Kind::kSubmanifold:
          context.node.level = input->level;
          op->rulebook = context.graph.levels.Rulebook(input->level, input->level, op->geometry());
          is_placed = true;
          break;
        case SparseConvOp::Kind::kStrided:
        case SparseConvOp::Kind::kTransposed:
          is_placed = PlaceOnNewSites(*input, &*op, context);
          break;
        case SparseConvOp::Kind::kInverse:
          is_placed = PlaceInverse(*input, &*op, context);
          break;
      }
    }
    if (is_placed || op->kind != SparseConvOp::Kind::kInverse) num_offsets = op->geometry().NumOffsets();
  } else {
    op.emplace();
  }
  op->in_channels = input == nullptr ? 0 : input->channels;
  op->out_channels = out_channels;
  const int groups = ReadGroups(proto.groups(), op->in_channels, out_channels, context.at);
  op->weight = context.ReadTensor(
      "weight",
      {num_offsets, groups == 0 ? kUnknownSize : SizeOrUnknown(op->in_channels / groups), SizeOrUnknown(out_channels)});
  if (op->weight != nullptr && is_placed && groups > 0) {
    const int64_t num_values = num_offsets * op->in_channels * out_channels;
    if (groups > 1 && num_values > kMaxSpreadWeights) {
      context.at.Add("its weight takes ", num_values, " values once its groups are spread; at most ", kMaxSpreadWeights,
                     " are possible");
    } else {
      op->weight = ArrangeWeight(op->weight, op->stored_cells, groups);
    }
  }
  if (proto.bias()) op->bias = context.ReadTensor("bias", {SizeOrUnknown(out_channels)});
  if (is_placed && groups > 0) context.node.channels = out_channels;
  context.node.op = *std::move(op);
}

bool PlaceOnNewSites(const GraphNode& input, SparseConvOp* op, NodeContext& context) {
  const bool is_transposed = op->kind == SparseConvOp::Kind::kTransposed;
  if (!context.graph.levels.CanApply(input.level, op->sites)) {
    const std::optional<kernels::Axes>& shape = context.graph.levels.levels()[input.level].spatial_shape;
    if (shape && is_transposed) {
      context.at.Add(
          "its output would have ",
          AxesText(kernels::TransposedShape(op->geometry(), *shape, op->sites.output_padding), context.graph.dimension),
          " sites; 1 to ", kernels::CoordinateKey(context.graph.dimension).max_coordinate() + 1,
          " on an axis are possible");
    } else if (shape) {
      context.at.Add("its kernel of ", AxesText(op->geometry().kernel_size, context.graph.dimension),
                     " does not fit into its input's ", AxesText(*shape, context.graph.dimension), " sites");
    } else if (!context.voxelize.is_broken) {
      context.at.Add(is_transposed ? "KIND_TRANSPOSED" : "RULE_PADDED",
                     " needs a spatial shape: a voxelize with ORIGIN_RANGE, and no RULE_EXPAND",
                     is_transposed ? " or KIND_GENERATIVE" : "", " in between");
    }
    return false;
  }
  context.node.level = context.graph.levels.Apply(input.level, op->sites);
  op->rulebook = is_transposed ? context.graph.levels.Rulebook(context.node.level, input.level, op->geometry())
                               : context.graph.levels.Rulebook(input.level, context.node.level, op->geometry());
  return true;
}

bool PlaceInverse(const GraphNode& input, SparseConvOp* op, NodeContext& context) {
  if (context.partner < 0) return false;
  const GraphNode& paired = context.graph.nodes[context.partner];
  const auto* const conv = std::get_if<SparseConvOp>(&paired.op);
  const auto* const pool = std::get_if<PoolOp>(&paired.op);
  const bool is_strided = (conv != nullptr && conv->kind == SparseConvOp::Kind::kStrided) ||
                          (pool != nullptr && pool->kind == SparseConvOp::Kind::kStrided);
  if (!is_strided) {
    // A partner with a problem of its own has 0 channels; it is not reported a second time.
    if ((conv == nullptr && pool == nullptr) || paired.channels > 0) {
      context.at.Add("paired_with ", Quoted(paired.name), " is not a pool or sparse_conv of KIND_STRIDED");
    }
    return false;
  }
  if (paired.channels == 0) return false;
  if (input.level != paired.level) {
    context.at.Add("its input ", Quoted(input.name), " is not on the sites that ", Quoted(paired.name), " makes");
    return false;
  }
  op->paired_with = context.partner;
  op->sites = conv != nullptr ? conv->sites : pool->sites;
  op->rulebook = conv != nullptr ? conv->rulebook : pool->rulebook;
  if (conv != nullptr) op->stored_cells = conv->stored_cells;
  context.node.level = context.graph.levels.rulebooks()[op->rulebook].in_level;
  return true;
}

}  // namespace voxserve
