#include <algorithm>
#include <array>
#include <cstdint>
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
      at.Add("curve must be CURVE_Z, CURVE_Z_TRANSPOSED, CURVE_HILBERT or CURVE_HILBERT_TRANSPOSED, without windows");
      return std::nullopt;
  }
}

std::optional<kernels::GroupTail> ReadTail(Groups::Tail tail, bool has_windows, const ProblemsAt& at) {
  switch (tail) {
    case Groups::TAIL_BORROWS:
      return kernels::GroupTail::kBorrows;
    case Groups::TAIL_SHORT:
      return kernels::GroupTail::kShort;
    case Groups::TAIL_SPREAD:
      if (has_windows) return kernels::GroupTail::kSpread;
      at.Add("tail is TAIL_SPREAD, which spreads groups over windows; it has none");
      return std::nullopt;
    default:
      at.Add("tail must be TAIL_BORROWS, TAIL_SHORT or TAIL_SPREAD");
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

// Reads the axes of windows, a permutation of x, y and z. Reports others.
bool ReadAxes(const Groups::Windows& proto, kernels::Axes* axes, const ProblemsAt& at) {
  if (proto.axes().empty()) return true;
  std::array<int, kGroupsDimension> counts = {};
  for (int i = 0; i < proto.axes_size(); ++i) {
    const int axis = proto.axes(i) - Groups::AXIS_X;
    if (i < kGroupsDimension) (*axes)[static_cast<size_t>(i)] = std::clamp(axis, 0, kGroupsDimension - 1);
    if (axis >= 0 && axis < kGroupsDimension) ++counts[static_cast<size_t>(axis)];
  }
  if (proto.axes_size() == kGroupsDimension && counts == std::array{1, 1, 1}) return true;
  at.Add("windows: axes must be AXIS_X, AXIS_Y and AXIS_Z, each once, in any order");
  return false;
}

// Returns nullopt and reports problems if there is anything wrong.
std::optional<kernels::SiteWindows> ReadWindows(const Groups& proto, const NodeContext& context) {
  const Groups::Windows& of = proto.windows();
  kernels::SiteWindows windows{.is_snake = of.snake()};
  bool is_ok =
      ReadWindow("windows: shape", of.shape(), "windows: shift", of.shift(), &windows.shape, &windows.shift, context);
  is_ok = ReadAxes(of, &windows.axes, context.at) && is_ok;
  if (proto.curve() != Groups::CURVE_UNSPECIFIED || proto.depth() != Groups::DEPTH_UNSPECIFIED) {
    context.at.Add("has windows, and a curve or its depth; the order of the sites is one or the other");
    is_ok = false;
  }
  return is_ok ? std::optional(windows) : std::nullopt;
}

// Returns true if sites of the level of `input` can be ordered; otherwise reports a problem.
bool CanBeOrdered(const GraphNode& input, const NodeContext& context) {
  if (context.graph.dimension != kGroupsDimension) {
    context.at.Add("needs sites of ", kGroupsDimension, " axes; the network has ", context.graph.dimension);
    return false;
  }
  if (context.graph.voxelize_op().origin == kernels::VoxelOrigin::kZero) {
    context.at.Add("needs coordinates of 0 or more; those of ORIGIN_ZERO can be below 0");
    return false;
  }
  if (!context.graph.levels.IsNeverNegative(input.level, kGroupsDimension)) {
    context.at.Add("needs coordinates of 0 or more; those of ", Quoted(input.name), " can be below 0");
    return false;
  }
  return true;
}

// Returns the order along the curve of the input's level. Returns nullopt and reports a problem if it has none.
std::optional<SiteOrderSpec> OrderOf(const GraphNode& input, kernels::Curve curve, Groups::Depth depth,
                                     const NodeContext& context) {
  if (!CanBeOrdered(input, context)) return std::nullopt;
  SiteOrderSpec order{.level = input.level, .curve = curve};
  if (!kernels::IsHilbert(curve)) return order;
  order.depth_level = input.level;
  if (depth == Groups::DEPTH_OWN_LEVEL) return order;
  const std::optional<int> halvings = context.graph.levels.NumHalvings(input.level, kGroupsDimension);
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

bool ReadWindow(const char* shape_name, const google::protobuf::RepeatedField<uint32_t>& shape, const char* shift_name,
                const google::protobuf::RepeatedField<uint32_t>& shift, kernels::Axes* shape_to,
                kernels::Axes* shift_to, const NodeContext& context) {
  const int dimension = context.graph.dimension;
  if (shape.size() != dimension) {
    context.at.Add(shape_name, " has ", shape.size(), " values; it needs one for each of the ", dimension, " axes");
    return false;
  }
  if (!shift.empty() && shift.size() != dimension) {
    context.at.Add(shift_name, " has ", shift.size(), " values; it needs one for each of the ", dimension,
                   " axes, or none");
    return false;
  }
  bool is_ok = true;
  for (int axis = 0; axis < dimension; ++axis) {
    const uint32_t sites = shape.Get(axis), moved = shift.empty() ? 0 : shift.Get(axis);
    if (sites < 1 || sites > static_cast<uint32_t>(kernels::kMaxWindowShape)) {
      context.at.Add(shape_name, "[", axis, "] is ", sites, "; it must be 1 to ", kernels::kMaxWindowShape);
      is_ok = false;
      continue;
    }
    if (moved >= sites) {
      context.at.Add(shift_name, "[", axis, "] is ", moved, "; it must be below the shape, ", sites);
      is_ok = false;
      continue;
    }
    (*shape_to)[static_cast<size_t>(axis)] = static_cast<int32_t>(sites);
    (*shift_to)[static_cast<size_t>(axis)] = static_cast<int32_t>(moved);
  }
  return is_ok;
}

void CheckGroups(NodeContext& context) {
  const Groups& proto = context.proto.groups();
  const bool has_windows = proto.has_windows();
  // Windows are read for networks of other dimensions only by the check of the level.
  const std::optional<kernels::SiteWindows> windows =
      has_windows && context.graph.dimension == kGroupsDimension ? ReadWindows(proto, context) : std::nullopt;
  const std::optional<kernels::Curve> curve = has_windows ? kernels::Curve::kZ : ReadCurve(proto.curve(), context.at);
  const std::optional<kernels::GroupTail> tail = ReadTail(proto.tail(), has_windows, context.at);
  const bool has_order = has_windows ? windows.has_value() || context.graph.dimension != kGroupsDimension
                                     : CheckDepth(proto.depth(), curve, context.at) && curve.has_value();
  const bool has_size = proto.size() >= 1 && proto.size() <= static_cast<uint32_t>(kernels::kMaxGroupSize);
  if (!has_size) context.at.Add("size is ", proto.size(), "; it must be 1 to ", kernels::kMaxGroupSize);
  GroupsOp op;
  const GraphNode* const input = context.FeaturesInput(0);
  if (has_order && tail && has_size && input != nullptr) {
    if (std::optional<SiteOrderSpec> order = OrderOf(*input, *curve, proto.depth(), context)) {
      uint64_t size = proto.size();
      order->windows = windows;
      if (*tail == kernels::GroupTail::kSpread) {
        // A window of at most `size` sites is one group, whatever the size.
        size = std::min(size, kernels::WindowVolume(*windows));
        order->spread_size = static_cast<int32_t>(size);
      }
      op = {.order = *order, .size = static_cast<int32_t>(size), .tail = *tail};
      context.node.level = input->level;
      context.node.channels = 1;
    }
  }
  context.node.op = op;
}

}  // namespace voxserve
