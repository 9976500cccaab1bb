#include <cstddef>
#include <optional>

#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"

namespace voxserve {
namespace {

// Returns true if this input is the voxelize node or is not known; otherwise reports a problem. which: the input's name
// in messages, such as "second ".
bool IsVoxelize(const NodeContext& context, size_t input, const char* which) {
  const GraphNode* const voxelize = context.Known(input);
  if (voxelize == nullptr || std::holds_alternative<VoxelizeOp>(voxelize->op)) return true;
  context.at.Add("its ", which, "input ", Quoted(voxelize->name), " is not the voxelize");
  return false;
}

// Returns true if the unit of `level` (the size of a site in voxels) is at least the unit of the input's level;
// otherwise reports a problem.
bool IsCoarsening(const NodeContext& context, const GraphNode& input, int level) {
  const std::optional<kernels::SiteRatio> ratio = context.graph.levels.RatioBetween(input.level, level);
  if (!ratio) {
    context.at.Add("its input ", Quoted(input.name), " has a unit too far from that of the sites");
    return false;
  }
  for (int axis = 0; axis < context.graph.dimension; ++axis) {
    if (ratio->multiplier[axis] <= ratio->divisor[axis]) continue;
    context.at.Add("its input ", Quoted(input.name), " has a coarser unit than the sites, on axis ", axis);
    return false;
  }
  return true;
}

// Checks has_empty_slots of a point_to_voxel node (PointToVoxelOp) and the input that it needs. input: the node's first
// input; null: not known. If something is wrong, returns false, and reports a problem unless one was reported before.
bool HasSlotsThatFit(const NodeContext& context, const GraphNode* input) {
  const model::v1::PointToVoxel& proto = context.proto.point_to_voxel();
  const size_t num_inputs = context.node.inputs.size();
  if (!proto.has_empty_slots()) {
    if (num_inputs <= 2) return true;
    context.at.Add("has ", num_inputs, " inputs; without has_empty_slots it needs 1 to 2");
    return false;
  }
  if (num_inputs != 3) {
    context.at.Add("has ", num_inputs, " inputs; with has_empty_slots it needs 3");
    return false;
  }
  const bool is_as_pillars =
      proto.reduce() == model::v1::Pool::REDUCE_MAX && proto.max_points() > 0 && proto.sites_of().empty();
  if (!is_as_pillars) context.at.Add("has_empty_slots needs REDUCE_MAX, max_points and no sites_of");
  const GraphNode* const slots = context.FeaturesInput(1);
  if (slots == nullptr || input == nullptr) return false;
  if (slots->level != 0) {
    context.at.Add("its second input ", Quoted(slots->name), " is not on the voxelize's sites");
    return false;
  }
  if (slots->channels != input->channels) {
    context.at.Add("reduces ", input->channels, " channels of ", Quoted(input->name), " and ", slots->channels, " of ",
                   Quoted(slots->name));
    return false;
  }
  return is_as_pillars;
}

}  // namespace

void CheckVoxelToPoint(NodeContext& context) {
  context.node.op = VoxelToPointOp();
  context.node.level = kPointLevel;
  IsVoxelize(context, 1, "second ");
  const GraphNode* const input = context.Known(0);
  if (input == nullptr) return;
  if (input->level == kPointLevel) {
    context.at.Add("its first input ", Quoted(input->name), " has one row per point already");
    return;
  }
  if (input->level != 0) {
    context.at.Add("its first input ", Quoted(input->name), " is not on the voxelize's sites");
    return;
  }
  context.node.channels = input->channels;
  context.node.is_labels = input->is_labels;
}

void CheckPointFeatures(NodeContext& context) {
  context.node.op = PointFeaturesOp();
  context.node.level = kPointLevel;
  const GraphNode* const voxelize = context.Known(0);
  if (!IsVoxelize(context, 0, "") || voxelize == nullptr) return;
  context.node.channels = voxelize->channels;
}

void CheckPointOffsets(NodeContext& context) {
  using model::v1::PointOffsets;
  const PointOffsets& proto = context.proto.point_offsets();
  const bool is_from_mean = proto.reference() == PointOffsets::REFERENCE_MEAN;
  context.node.op = PointOffsetsOp{.is_from_mean = is_from_mean, .max_points = proto.max_points()};
  context.node.level = kPointLevel;
  bool is_ok = true;
  if (!is_from_mean && proto.reference() != PointOffsets::REFERENCE_CENTER) {
    context.at.Add("reference must be REFERENCE_MEAN or REFERENCE_CENTER");
    is_ok = false;
  } else if (!is_from_mean && proto.max_points() > 0) {
    context.at.Add("max_points belongs to REFERENCE_MEAN alone");
    is_ok = false;
  }
  const GraphNode* const voxelize = context.Known(0);
  if (!IsVoxelize(context, 0, "") || voxelize == nullptr) return;
  const bool has_cells = std::get<VoxelizeOp>(voxelize->op).origin != kernels::VoxelOrigin::kMinimum;
  if (proto.reference() == PointOffsets::REFERENCE_CENTER && !has_cells) {
    context.at.Add(
        "REFERENCE_CENTER needs ORIGIN_RANGE or ORIGIN_ZERO: with ORIGIN_MINIMUM cells are counted anew for every "
        "sample");
    is_ok = false;
  }
  if (is_ok) context.node.channels = context.graph.dimension;
}

void CheckSitePosition(NodeContext& context) {
  using model::v1::SitePosition;
  const SitePosition& proto = context.proto.site_position();
  SitePositionOp op{.is_mean = proto.of() == SitePosition::OF_MEAN_POINT, .is_from_minimum = proto.from_minimum()};
  if (!op.is_mean && proto.of() != SitePosition::OF_FIRST_POINT) {
    context.at.Add("of must be OF_FIRST_POINT or OF_MEAN_POINT");
  }
  ReadAxisValues("scale", proto.scale(), op.scale.data(), context);
  ReadAxisValues("shift", proto.shift(), op.shift.data(), context);
  context.node.op = op;
  const GraphNode* const voxelize = context.Known(0);
  if (!IsVoxelize(context, 0, "") || voxelize == nullptr) return;
  context.node.channels = context.graph.dimension;
}

void CheckPointToVoxel(NodeContext& context) {
  const model::v1::PointToVoxel& proto = context.proto.point_to_voxel();
  const std::optional<kernels::PoolReduce> reduce = ReadReduce(proto.reduce(), context.at);
  context.node.op = PointToVoxelOp{.reduce = reduce.value_or(kernels::PoolReduce::kMax),
                                   .sites_of = context.partner,
                                   .max_points = proto.max_points(),
                                   .has_empty_slots = proto.has_empty_slots()};
  const size_t num_inputs = context.node.inputs.size();
  const bool is_of_points = num_inputs > 1;
  if (is_of_points) IsVoxelize(context, num_inputs - 1, num_inputs > 2 ? "third " : "second ");
  if (!is_of_points && proto.max_points() > 0) {
    context.at.Add("max_points needs rows of points: the first sites differ between devices");
    return;
  }
  const GraphNode* const input = context.FeaturesInput(0);
  if (!HasSlotsThatFit(context, input)) return;
  if (input == nullptr) return;
  if (is_of_points && input->level != kPointLevel) {
    context.at.Add("its first input ", Quoted(input->name), " has ", RowsText(*input), "; it needs one row per point");
    return;
  }
  if (!is_of_points && input->level < 0) {
    context.at.Add("its only input ", Quoted(input->name), " has ", RowsText(*input),
                   "; it needs sites, or the voxelize as its second input");
    return;
  }
  if (!proto.sites_of().empty()) {
    const GraphNode* const given = context.KnownPartner();
    if (given == nullptr) return;
    if (given->level < 0) {
      context.at.Add("sites_of ", Quoted(given->name), " has ", RowsText(*given), "; sites are those of voxels");
      return;
    }
    if (is_of_points && !context.graph.levels.RatioBetween(0, given->level)) {
      context.at.Add("sites_of ", Quoted(given->name), " has a unit too far from a voxel's");
      return;
    }
    context.node.level = given->level;
  }
  if (!is_of_points && !IsCoarsening(context, *input, context.node.level)) return;
  context.node.channels = input->channels;
}

void CheckDevoxelize(NodeContext& context) {
  context.node.op = DevoxelizeOp();
  const GraphNode* const input = context.FeaturesInput(0);
  const GraphNode* const positions = context.FeaturesInput(1);
  if (input == nullptr || positions == nullptr) return;
  const bool is_of_points = std::holds_alternative<VoxelizeOp>(positions->op);
  if (positions->level < 0) {
    context.at.Add("its second input ", Quoted(positions->name), " has ", RowsText(*positions),
                   "; it must be the voxelize or a tensor on sites");
    return;
  }
  const std::optional<kernels::SiteRatio> ratio =
      context.graph.levels.RatioBetween(is_of_points ? 0 : positions->level, input->level);
  if (!ratio) {
    context.at.Add("its input ", Quoted(input->name), " has a unit too far from that of ", Quoted(positions->name));
    return;
  }
  for (int axis = 0; axis < context.graph.dimension && !is_of_points; ++axis) {
    if (ratio->multiplier[axis] <= ratio->divisor[axis]) continue;
    context.at.Add("its second input ", Quoted(positions->name), " has a coarser unit than its first, ",
                   Quoted(input->name), ", on axis ", axis);
    return;
  }
  context.node.level = is_of_points ? kPointLevel : positions->level;
  context.node.channels = input->channels;
}

}  // namespace voxserve
