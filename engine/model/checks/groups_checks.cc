#include <optional>

#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"
#include "kernels/rows/attention/group_attention.h"

namespace voxserve {
namespace {

using model::v1::Groups;

constexpr int kGroupsDimension = 3;

std::optional<kernels::Curve> ReadCurve(Groups::Curve curve, const ProblemsAt& at) {
  switch (curve) {
    case Groups::CURVE_Z:
      return kernels::Curve::kZ;
    case Groups::CURVE_Z_TRANSPOSED:
      return kernels::Curve::kZTransposed;
    case Groups::CURVE_HILBERT:
      return kernels::Curve::kHilbert;
    case Groups::CURVE_HILBERT_TRANSPOSED:
      return kernels::Curve::kHilbertTransposed;
    default:
      at.Add("curve must be CURVE_Z, CURVE_Z_TRANSPOSED, CURVE_HILBERT or CURVE_HILBERT_TRANSPOSED");
      return std::nullopt;
  }
}

std::optional<kernels::GroupTail> ReadTail(Groups::Tail tail, const ProblemsAt& at) {
  switch (tail) {
    case Groups::TAIL_BORROWS:
      return kernels::GroupTail::kBorrows;
    case Groups::TAIL_SHORT:
      return kernels::GroupTail::kShort;
    default:
      at.Add("tail must be TAIL_BORROWS or TAIL_SHORT");
      return std::nullopt;
  }
}

// Returns true if the depth is known, and set where a curve needs it; otherwise reports a problem.
bool CheckDepth(Groups::Depth depth, std::optional<kernels::Curve> curve, const ProblemsAt& at) {
  if (depth == Groups::DEPTH_FIRST_LEVEL || depth == Groups::DEPTH_OWN_LEVEL) return true;
  if (depth == Groups::DEPTH_UNSPECIFIED && !(curve && kernels::IsHilbert(*curve))) return true;
  at.Add("depth must be DEPTH_FIRST_LEVEL or DEPTH_OWN_LEVEL",
         depth == Groups::DEPTH_UNSPECIFIED ? " for a Hilbert curve" : "");
  return false;
}

// Returns the order along the curve of the input's level. Returns nullopt and reports a problem if it has none.
std::optional<SiteOrderSpec> OrderOf(const GraphNode& input, kernels::Curve curve, Groups::Depth depth,
                                     const NodeContext& context) {
  const LevelTable& levels = context.graph.levels;
  if (context.graph.dimension != kGroupsDimension) {
    context.at.Add("needs sites of ", kGroupsDimension, " axes; the network has ", context.graph.dimension);
    return std::nullopt;
  }
  if (context.graph.voxelize_op().origin == kernels::VoxelOrigin::kZero) {
    context.at.Add("needs coordinates of 0 or more; those of ORIGIN_ZERO can be below 0");
    return std::nullopt;
  }
  if (!levels.IsNeverNegative(input.level, kGroupsDimension)) {
    context.at.Add("needs coordinates of 0 or more; those of ", Quoted(input.name), " can be below 0");
    return std::nullopt;
  }
  SiteOrderSpec order{.level = input.level, .curve = curve};
  if (!kernels::IsHilbert(curve)) return order;
  order.depth_level = input.level;
  if (depth == Groups::DEPTH_OWN_LEVEL) return order;
  const std::optional<int> halvings = levels.NumHalvings(input.level, kGroupsDimension);
  if (!halvings) {
    context.at.Add(
        "DEPTH_FIRST_LEVEL needs sites that follow from the voxels by strides, with a unit that is a power of "
        "2, the same on each axis; those of ",
        Quoted(input.name), " do not");
    return std::nullopt;
  }
  order.depth_level = 0;
  order.halvings = *halvings;
  return order;
}

}  // namespace

void CheckGroups(NodeContext& context) {
  const Groups& proto = context.proto.groups();
  const std::optional<kernels::Curve> curve = ReadCurve(proto.curve(), context.at);
  const std::optional<kernels::GroupTail> tail = ReadTail(proto.tail(), context.at);
  const bool has_depth = CheckDepth(proto.depth(), curve, context.at);
  const bool has_size = proto.size() >= 1 && proto.size() <= static_cast<uint32_t>(kernels::kMaxGroupSize);
  if (!has_size) context.at.Add("size is ", proto.size(), "; it must be 1 to ", kernels::kMaxGroupSize);
  GroupsOp op;
  const GraphNode* const input = context.FeaturesInput(0);
  if (curve && tail && has_depth && has_size && input != nullptr) {
    if (const std::optional<SiteOrderSpec> order = OrderOf(*input, *curve, proto.depth(), context)) {
      op = {.order = *order, .size = static_cast<int32_t>(proto.size()), .tail = *tail};
      context.node.level = input->level;
      context.node.channels = 1;
    }
  }
  context.node.op = op;
}

}  // namespace voxserve
