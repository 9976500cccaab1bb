// Rows of points, and the ways between points and voxels.

#include <optional>

#include "engine/base/quoted.h"
#include "engine/model/checks/node_checker.h"
#include "engine/model/node_parameters.h"

namespace voxserve {

bool NodeChecker::IsVoxelize(const GraphNode& node, size_t input, const char* which, const ProblemsAt& at) const {
  const GraphNode* const voxelize = Known(node, input);
  if (voxelize == nullptr || std::holds_alternative<VoxelizeOp>(voxelize->op)) return true;
  at.Add("its ", which, "input ", Quoted(voxelize->name), " is not the voxelize");
  return false;
}

void NodeChecker::CheckVoxelToPoint(GraphNode* node, const ProblemsAt& at) {
  node->op = VoxelToPointOp();
  node->level = kPointLevel;
  IsVoxelize(*node, 1, "second ", at);
  const GraphNode* const input = Known(*node, 0);
  if (input == nullptr) return;
  if (input->level == kPointLevel) {
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

void NodeChecker::CheckPointFeatures(GraphNode* node, const ProblemsAt& at) {
  node->op = PointFeaturesOp();
  node->level = kPointLevel;
  const GraphNode* const voxelize = Known(*node, 0);
  if (!IsVoxelize(*node, 0, "", at) || voxelize == nullptr) return;
  node->channels = voxelize->channels;
}

void NodeChecker::CheckPointToVoxel(const model::v1::PointToVoxel& proto, int partner, GraphNode* node,
                                    const ProblemsAt& at) {
  const std::optional<kernels::PoolReduce> reduce = ReadReduce(proto.reduce(), at);
  node->op = PointToVoxelOp{.reduce = reduce.value_or(kernels::PoolReduce::kMax), .sites_of = partner};
  const bool is_of_points = node->inputs.size() > 1;
  if (is_of_points) IsVoxelize(*node, 1, "second ", at);
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  if (input == nullptr) return;
  if (is_of_points && input->level != kPointLevel) {
    at.Add("its first input ", Quoted(input->name), " has ", RowsText(*input), "; it needs a row a point");
    return;
  }
  if (!is_of_points && input->level < 0) {
    at.Add("its only input ", Quoted(input->name), " has ", RowsText(*input),
           "; it needs sites, or the voxelize as its second input");
    return;
  }
  if (!proto.sites_of().empty()) {
    if (partner < 0 || graph_.nodes[partner].channels == 0) return;
    const GraphNode& given = graph_.nodes[partner];
    if (given.level < 0) {
      at.Add("sites_of ", Quoted(given.name), " has ", RowsText(given), "; sites are those of voxels");
      return;
    }
    if (is_of_points && !graph_.levels.RatioBetween(0, given.level)) {
      at.Add("sites_of ", Quoted(given.name), " has a unit too far from a voxel's");
      return;
    }
    node->level = given.level;
  }
  if (!is_of_points && !IsCoarsening(*input, node->level, at)) return;
  node->channels = input->channels;
}

bool NodeChecker::IsCoarsening(const GraphNode& input, int level, const ProblemsAt& at) const {
  const std::optional<kernels::SiteRatio> ratio = graph_.levels.RatioBetween(input.level, level);
  if (!ratio) {
    at.Add("its input ", Quoted(input.name), " has a unit too far from that of the sites");
    return false;
  }
  for (int axis = 0; axis < graph_.dimension; ++axis) {
    if (ratio->multiplier[axis] <= ratio->divisor[axis]) continue;
    at.Add("its input ", Quoted(input.name), " has a coarser unit than the sites, on axis ", axis);
    return false;
  }
  return true;
}

void NodeChecker::CheckDevoxelize(GraphNode* node, const ProblemsAt& at) {
  node->op = DevoxelizeOp();
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  const GraphNode* const positions = FeaturesInput(*node, 1, at);
  if (input == nullptr || positions == nullptr) return;
  const bool is_of_points = std::holds_alternative<VoxelizeOp>(positions->op);
  if (positions->level < 0) {
    at.Add("its second input ", Quoted(positions->name), " has ", RowsText(*positions),
           "; it must be the voxelize or a tensor on sites");
    return;
  }
  const std::optional<kernels::SiteRatio> ratio =
      graph_.levels.RatioBetween(is_of_points ? 0 : positions->level, input->level);
  if (!ratio) {
    at.Add("its input ", Quoted(input->name), " has a unit too far from that of ", Quoted(positions->name));
    return;
  }
  for (int axis = 0; axis < graph_.dimension && !is_of_points; ++axis) {
    if (ratio->multiplier[axis] <= ratio->divisor[axis]) continue;
    at.Add("its second input ", Quoted(positions->name), " has a coarser unit than its first, ", Quoted(input->name),
           ", on axis ", axis);
    return;
  }
  node->level = is_of_points ? kPointLevel : positions->level;
  node->channels = input->channels;
}

}  // namespace voxserve
