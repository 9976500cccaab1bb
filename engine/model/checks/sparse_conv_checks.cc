// The part of NodeChecker that places convolutions: which sites they read and make, and through which rulebook.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/node_checker.h"
#include "engine/model/node_parameters.h"
#include "engine/model/sparse_conv_weight.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/output_coordinates.h"

namespace voxserve {
namespace {

template <typename Axes>
std::string AxesText(const Axes& axes, int dimension) {
  return absl::StrJoin(axes.begin(), axes.begin() + dimension, " x ");
}

}  // namespace

void NodeChecker::CheckSparseConv(const model::v1::SparseConv& proto, int partner, GraphNode* node,
                                  const ProblemsAt& at) {
  std::optional<SparseConvOp> op = ReadSparseConv(proto, graph_.dimension, at);
  const int out_channels = ReadOutChannels(proto.out_channels(), at);
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  bool is_placed = false;
  int64_t num_offsets = kUnknownSize;
  if (op) {
    if (input != nullptr && !proto.sites_of().empty()) {
      is_placed = PlaceOnGivenSites(*input, partner, &*op, node, at);
    } else if (input != nullptr) {
      switch (op->kind) {
        case SparseConvOp::Kind::kSubmanifold:
          node->level = input->level;
          op->rulebook = graph_.levels.Rulebook(input->level, input->level, op->geometry());
          is_placed = true;
          break;
        case SparseConvOp::Kind::kStrided:
        case SparseConvOp::Kind::kTransposed:
          is_placed = PlaceOnNewSites(*input, &*op, node, at);
          break;
        case SparseConvOp::Kind::kInverse:
          is_placed = PlaceInverse(*input, partner, &*op, node, at);
          break;
      }
    }
    if (is_placed || op->kind != SparseConvOp::Kind::kInverse) num_offsets = op->geometry().NumOffsets();
  } else {
    op.emplace();
  }
  op->in_channels = input == nullptr ? 0 : input->channels;
  op->out_channels = out_channels;
  const int groups = ReadGroups(proto.groups(), op->in_channels, out_channels, at);
  op->weight = weights_.Read(
      node->name, "weight",
      {num_offsets, groups == 0 ? kUnknownSize : SizeOrUnknown(op->in_channels / groups), SizeOrUnknown(out_channels)});
  if (op->weight != nullptr && is_placed && groups > 0) {
    const int64_t num_values = num_offsets * op->in_channels * out_channels;
    if (groups > 1 && num_values > kMaxSpreadWeights) {
      at.Add("its weight takes ", num_values, " values once its groups are spread; at most ", kMaxSpreadWeights,
             " are possible");
    } else {
      op->weight = ArrangeWeight(op->weight, op->stored_cells, groups);
    }
  }
  if (proto.bias()) op->bias = weights_.Read(node->name, "bias", {SizeOrUnknown(out_channels)});
  if (is_placed && groups > 0) node->channels = out_channels;
  node->op = *std::move(op);
}

bool NodeChecker::PlaceOnNewSites(const GraphNode& input, SparseConvOp* op, GraphNode* node, const ProblemsAt& at) {
  const bool is_transposed = op->kind == SparseConvOp::Kind::kTransposed;
  if (!graph_.levels.CanApply(input.level, op->sites)) {
    const std::optional<kernels::Axes>& shape = graph_.levels.levels()[input.level].spatial_shape;
    if (shape && is_transposed) {
      at.Add("its output would have ",
             AxesText(kernels::TransposedShape(op->geometry(), *shape, op->sites.output_padding), graph_.dimension),
             " sites; 1 to ", kernels::CoordinateKey(graph_.dimension).max_coordinate() + 1,
             " on an axis are possible");
    } else if (shape) {
      at.Add("its kernel of ", AxesText(op->geometry().kernel_size, graph_.dimension),
             " does not fit into its input's ", AxesText(*shape, graph_.dimension), " sites");
    } else if (!is_grid_unknown_) {
      at.Add(is_transposed ? "KIND_TRANSPOSED" : "RULE_PADDED",
             " needs a spatial shape: a voxelize with ORIGIN_RANGE, and no RULE_EXPAND",
             is_transposed ? " or KIND_GENERATIVE" : "", " in between");
    }
    return false;
  }
  node->level = graph_.levels.Apply(input.level, op->sites);
  op->rulebook = is_transposed ? graph_.levels.Rulebook(node->level, input.level, op->geometry())
                               : graph_.levels.Rulebook(input.level, node->level, op->geometry());
  return true;
}

bool NodeChecker::PlaceOnGivenSites(const GraphNode& input, int partner, SparseConvOp* op, GraphNode* node,
                                    const ProblemsAt& at) {
  if (partner < 0 || graph_.nodes[partner].channels == 0) return false;
  const GraphNode& given = graph_.nodes[partner];
  if (given.level < 0) {
    at.Add("sites_of ", Quoted(given.name), " has ", RowsText(given), "; sites are those of voxels");
    return false;
  }
  const bool is_transposed = op->is_swapped();
  const int fine = is_transposed ? given.level : input.level;
  const int coarse = is_transposed ? input.level : given.level;
  if (!graph_.levels.IsStrideBetween(fine, coarse, op->geometry())) {
    at.Add("its stride of ", AxesText(op->geometry().stride, graph_.dimension), " does not lead from the sites of ",
           Quoted(is_transposed ? given.name : input.name), " to those of ",
           Quoted(is_transposed ? input.name : given.name));
    return false;
  }
  node->level = given.level;
  op->sites_of = partner;
  op->rulebook = graph_.levels.Rulebook(fine, coarse, op->geometry());
  return true;
}

bool NodeChecker::PlaceInverse(const GraphNode& input, int partner, SparseConvOp* op, GraphNode* node,
                               const ProblemsAt& at) {
  if (partner < 0) return false;
  const GraphNode& paired = graph_.nodes[partner];
  const auto* const conv = std::get_if<SparseConvOp>(&paired.op);
  const auto* const pool = std::get_if<PoolOp>(&paired.op);
  const bool is_strided = (conv != nullptr && conv->kind == SparseConvOp::Kind::kStrided) ||
                          (pool != nullptr && pool->kind == SparseConvOp::Kind::kStrided);
  if (!is_strided) {
    // A convolution or pool with a problem of its own has channels 0 and stays unnamed here.
    if ((conv == nullptr && pool == nullptr) || paired.channels > 0) {
      at.Add("paired_with ", Quoted(paired.name), " is not a pool or sparse_conv of KIND_STRIDED");
    }
    return false;
  }
  if (paired.channels == 0) return false;
  if (input.level != paired.level) {
    at.Add("its input ", Quoted(input.name), " is not on the sites that ", Quoted(paired.name), " makes");
    return false;
  }
  op->paired_with = partner;
  op->sites = conv != nullptr ? conv->sites : pool->sites;
  op->rulebook = conv != nullptr ? conv->rulebook : pool->rulebook;
  if (conv != nullptr) op->stored_cells = conv->stored_cells;
  node->level = graph_.levels.rulebooks()[op->rulebook].in_level;
  return true;
}

}  // namespace voxserve
