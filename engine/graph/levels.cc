#include "engine/graph/levels.h"

#include <algorithm>

#include "kernels/output_coordinates.h"

namespace voxserve {
namespace {

using kernels::Axes;
using kernels::ConvGeometry;
using kernels::CoordinateRule;

template <typename Predicate>
bool AllAxes(const ConvGeometry& geometry, Predicate predicate) {
  for (int axis = 0; axis < geometry.dimension; ++axis) {
    if (!predicate(axis)) return false;
  }
  return true;
}

ConvGeometry DropIdleDilation(ConvGeometry geometry) {
  for (int axis = 0; axis < kernels::kMaxDimension; ++axis) {
    if (geometry.kernel_size[axis] == 1) geometry.dilation[axis] = 1;
  }
  return geometry;
}

// What the sites depend on, and nothing else.
SiteRule Canonical(const SiteRule& rule) {
  SiteRule canonical = rule;
  canonical.geometry = DropIdleDilation(rule.geometry);
  if (rule.rule == CoordinateRule::kExpand && !rule.geometry.StrideIsOneOrKernel()) return canonical;
  canonical.lower_bound.reset();
  canonical.upper_bound.reset();
  if (rule.rule == CoordinateRule::kPadded) return canonical;
  canonical.rule = CoordinateRule::kFloor;
  canonical.geometry = ConvGeometry{.dimension = rule.geometry.dimension, .stride = rule.geometry.stride};
  return canonical;
}

// True where the canonical rule makes every site from itself.
bool KeepsSites(const SiteRule& canonical) {
  const ConvGeometry& geometry = canonical.geometry;
  return AllAxes(geometry, [&](int axis) {
    return geometry.stride[axis] == 1 && geometry.kernel_size[axis] == 1 && geometry.padding[axis] == 0;
  });
}

std::optional<Axes> OutputShape(const std::optional<Axes>& shape, const SiteRule& canonical) {
  if (!shape || canonical.rule == CoordinateRule::kExpand) return std::nullopt;
  const bool is_padded = canonical.rule == CoordinateRule::kPadded;
  const Axes padded = is_padded ? kernels::OutputShape(canonical.geometry, *shape) : Axes();
  Axes out = {1, 1, 1, 1};
  for (int axis = 0; axis < canonical.geometry.dimension; ++axis) {
    out[axis] = is_padded ? padded[axis] : ((*shape)[axis] - 1) / canonical.geometry.stride[axis] + 1;
  }
  return out;
}

}  // namespace

LevelTable::LevelTable(std::optional<Axes> spatial_shape) { levels_.push_back({.spatial_shape = spatial_shape}); }

bool LevelTable::CanApply(int parent, const SiteRule& rule) const {
  if (rule.rule != CoordinateRule::kPadded) return true;
  const std::optional<Axes>& shape = levels_[parent].spatial_shape;
  if (!shape) return false;
  const Axes out = kernels::OutputShape(rule.geometry, *shape);
  return AllAxes(rule.geometry, [&](int axis) { return out[axis] > 0; });
}

int LevelTable::Apply(int parent, const SiteRule& rule) {
  const SiteRule canonical = Canonical(rule);
  if (KeepsSites(canonical)) return parent;
  const auto found = std::find_if(levels_.begin() + 1, levels_.end(), [&](const CoordinateLevel& level) {
    return level.parent == parent && level.from == canonical;
  });
  if (found != levels_.end()) return static_cast<int>(found - levels_.begin());
  levels_.push_back(
      {.parent = parent, .from = canonical, .spatial_shape = OutputShape(levels_[parent].spatial_shape, canonical)});
  return static_cast<int>(levels_.size()) - 1;
}

int LevelTable::Rulebook(int in_level, int out_level, const ConvGeometry& geometry) {
  const RulebookSpec spec = {in_level, out_level, DropIdleDilation(geometry)};
  const auto found = std::find(rulebooks_.begin(), rulebooks_.end(), spec);
  if (found != rulebooks_.end()) return static_cast<int>(found - rulebooks_.begin());
  rulebooks_.push_back(spec);
  return static_cast<int>(rulebooks_.size()) - 1;
}

}  // namespace voxserve
