#include "engine/model/levels.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/output_coordinates.h"

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

// Returns the rule without the parameters that do not affect the sites.
SiteRule Canonical(const SiteRule& rule) {
  SiteRule canonical = rule;
  canonical.geometry = DropIdleDilation(rule.geometry);
  if (rule.rule == CoordinateRule::kExpand && !rule.geometry.StrideIsOneOrKernel()) return canonical;
  canonical.lower_bound.reset();
  canonical.upper_bound.reset();
  if (rule.rule != CoordinateRule::kTransposed) canonical.output_padding = {0, 0, 0, 0};
  if (rule.rule == CoordinateRule::kPadded || kernels::MakesFinerSites(rule.rule)) return canonical;
  canonical.rule = CoordinateRule::kFloor;
  canonical.geometry = ConvGeometry{.dimension = rule.geometry.dimension, .stride = rule.geometry.stride};
  return canonical;
}

// Returns true if the canonical rule makes exactly the input's sites.
bool KeepsSites(const SiteRule& canonical) {
  const ConvGeometry& geometry = canonical.geometry;
  return AllAxes(geometry, [&](int axis) {
    return geometry.stride[axis] == 1 && geometry.kernel_size[axis] == 1 && geometry.padding[axis] == 0 &&
           canonical.output_padding[axis] == 0;
  });
}

// Returns the shape of the level that the rule makes. The sizes are not checked: they may be 0 or less, or too large
// for a key.
std::array<int64_t, kernels::kMaxDimension> OutputShape(const Axes& shape, const SiteRule& rule) {
  if (rule.rule == CoordinateRule::kTransposed) {
    return kernels::TransposedShape(rule.geometry, shape, rule.output_padding);
  }
  const bool is_padded = rule.rule == CoordinateRule::kPadded;
  const Axes padded = is_padded ? kernels::OutputShape(rule.geometry, shape) : Axes();
  std::array<int64_t, kernels::kMaxDimension> out = {1, 1, 1, 1};
  for (int axis = 0; axis < rule.geometry.dimension; ++axis) {
    out[axis] = is_padded ? padded[axis] : (shape[axis] - 1) / rule.geometry.stride[axis] + 1;
  }
  return out;
}

std::optional<Axes> KnownShape(const std::optional<Axes>& shape, const SiteRule& canonical) {
  if (!shape || canonical.rule == CoordinateRule::kExpand || canonical.rule == CoordinateRule::kGenerative) {
    return std::nullopt;
  }
  const auto sizes = OutputShape(*shape, canonical);
  Axes out = {1, 1, 1, 1};
  std::transform(sizes.begin(), sizes.end(), out.begin(), [](int64_t size) { return static_cast<int32_t>(size); });
  return out;
}

// Multiplies the fraction a / b, which is in lowest terms, by `factor` (1 or more). Sets a and b to 0 if a overflows.
void Scale(int64_t factor, int64_t& a, int64_t& b) {
  const int64_t divisor = std::gcd(factor, b);
  if (__builtin_mul_overflow(a, factor / divisor, &a)) {
    a = b = 0;
  } else {
    b /= divisor;
  }
}

SiteUnit UnitOf(SiteUnit unit, const SiteRule& rule) {
  for (size_t axis = 0; axis < unit.voxels.size(); ++axis) {
    const bool is_finer = kernels::MakesFinerSites(rule.rule);
    Scale(rule.geometry.stride[axis], is_finer ? unit.parts[axis] : unit.voxels[axis],
          is_finer ? unit.voxels[axis] : unit.parts[axis]);
  }
  return unit;
}

}  // namespace

LevelTable::LevelTable(std::optional<Axes> spatial_shape) { levels_.push_back({.spatial_shape = spatial_shape}); }

bool LevelTable::CanApply(int parent, const SiteRule& rule) const {
  if (!kernels::HasShape(rule.rule)) return true;
  const std::optional<Axes>& shape = levels_[parent].spatial_shape;
  if (!shape) return false;
  const auto out = OutputShape(*shape, rule);
  // Padding may make the shape larger than coordinate keys can hold. Then only batches with sites beyond the limit are
  // refused. A transposed convolution's shape must be within the limit.
  const int64_t most = rule.rule == CoordinateRule::kTransposed
                           ? int64_t{kernels::CoordinateKey(rule.geometry.dimension).max_coordinate()} + 1
                           : std::numeric_limits<int32_t>::max();
  return AllAxes(rule.geometry, [&](int axis) { return out[axis] > 0 && out[axis] <= most; });
}

bool LevelTable::IsStrideBetween(int fine, int coarse, const ConvGeometry& geometry) const {
  SiteUnit expected = levels_[fine].unit;
  const SiteUnit& unit = levels_[coarse].unit;
  return AllAxes(geometry, [&](int axis) {
    Scale(geometry.stride[axis], expected.voxels[axis], expected.parts[axis]);
    return expected.voxels[axis] != 0 && expected.voxels[axis] == unit.voxels[axis] &&
           expected.parts[axis] == unit.parts[axis];
  });
}

std::optional<kernels::SiteRatio> LevelTable::RatioBetween(int from, int to) const {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const SiteUnit& in = levels_[from].unit;
  const SiteUnit& out = levels_[to].unit;
  kernels::SiteRatio ratio;
  for (size_t axis = 0; axis < in.voxels.size(); ++axis) {
    int64_t multiplier = in.voxels[axis], divisor = in.parts[axis];
    if (multiplier == 0 || out.voxels[axis] == 0) return std::nullopt;
    Scale(out.parts[axis], multiplier, divisor);
    Scale(out.voxels[axis], divisor, multiplier);
    if (multiplier == 0 || multiplier > kMost || divisor > kMost) return std::nullopt;
    ratio.multiplier[axis] = static_cast<int32_t>(multiplier);
    ratio.divisor[axis] = static_cast<int32_t>(divisor);
  }
  return ratio;
}

bool LevelTable::HaveOneUnit(int a, int b) const {
  return a == b || IsStrideBetween(a, b, {.dimension = kernels::kMaxDimension});
}

int LevelTable::Apply(int parent, const SiteRule& rule) {
  const SiteRule canonical = Canonical(rule);
  if (KeepsSites(canonical)) return parent;
  return FindOrAdd({.parent = parent,
                    .from = canonical,
                    .spatial_shape = KnownShape(levels_[parent].spatial_shape, canonical),
                    .unit = UnitOf(levels_[parent].unit, canonical)});
}

int LevelTable::Filter(int parent, const SiteFilter& filter) {
  return FindOrAdd({.parent = parent,
                    .filter = filter,
                    .spatial_shape = levels_[parent].spatial_shape,
                    .unit = levels_[parent].unit});
}

int LevelTable::Union(const std::vector<int>& levels) {
  // The levels, with each union replaced by its parts.
  std::set<int> parts;
  std::vector<int> open = levels;
  std::vector<bool> is_replaced(levels_.size(), false);
  while (!open.empty()) {
    const int level = open.back();
    open.pop_back();
    if (is_replaced[static_cast<size_t>(level)]) continue;
    is_replaced[static_cast<size_t>(level)] = true;
    const int other = levels_[level].united_with;
    if (other < 0) {
      parts.insert(level);
    } else {
      open.insert(open.end(), {levels_[level].parent, other});
    }
  }
  return std::accumulate(std::next(parts.begin()), parts.end(), *parts.begin(),
                         [this](int a, int b) { return UnionOfTwo(a, b); });
}

int LevelTable::UnionOfTwo(int a, int b) {
  CoordinateLevel level{.parent = std::min(a, b), .united_with = std::max(a, b), .unit = levels_[a].unit};
  const std::optional<Axes>& shape = levels_[a].spatial_shape;
  const std::optional<Axes>& other = levels_[b].spatial_shape;
  if (shape && other) {
    level.spatial_shape = shape;
    for (size_t axis = 0; axis < other->size(); ++axis) {
      (*level.spatial_shape)[axis] = std::max((*shape)[axis], (*other)[axis]);
    }
  }
  return FindOrAdd(level);
}

int LevelTable::FindOrAdd(const CoordinateLevel& level) {
  const auto found = std::find_if(levels_.begin() + 1, levels_.end(), [&](const CoordinateLevel& other) {
    return other.parent == level.parent && other.united_with == level.united_with && other.filter == level.filter &&
           other.from == level.from;
  });
  if (found != levels_.end()) return static_cast<int>(found - levels_.begin());
  if (levels_.size() >= kMaxLevels) {
    is_full_ = true;
    return level.parent;
  }
  levels_.push_back(level);
  return static_cast<int>(levels_.size()) - 1;
}

template <typename Visitor>
bool LevelTable::VisitAncestors(int level, const Visitor& visit) const {
  std::vector<int> open = {level};
  std::vector<bool> is_known(levels_.size(), false);
  while (!open.empty()) {
    const int next = open.back();
    open.pop_back();
    if (next < 0 || is_known[static_cast<size_t>(next)]) continue;
    is_known[static_cast<size_t>(next)] = true;
    switch (visit(levels_[next])) {
      case Verdict::kNo:
        return false;
      case Verdict::kYes:
        break;
      case Verdict::kAsItsParents:
        open.insert(open.end(), {levels_[next].parent, levels_[next].united_with});
    }
  }
  return true;
}

bool LevelTable::IsNeverNegative(int level, int dimension) const {
  return VisitAncestors(level, [dimension](const CoordinateLevel& next) {
    if (next.parent < 0 || next.united_with >= 0) return Verdict::kAsItsParents;
    if (next.filter) {
      const Axes& lower = next.filter->lower;
      const bool is_cut =
          std::all_of(lower.begin(), lower.begin() + dimension, [](int32_t bound) { return bound >= 0; });
      return is_cut ? Verdict::kYes : Verdict::kAsItsParents;
    }
    const SiteRule& rule = next.from;
    if (kernels::HasShape(rule.rule)) return Verdict::kYes;  // the sites are within [0, shape)
    if (rule.rule == CoordinateRule::kExpand && rule.lower_bound) {
      const bool is_bounded =
          AllAxes(rule.geometry, [&](int axis) { return (*rule.lower_bound)[axis] > -rule.geometry.stride[axis]; });
      return is_bounded ? Verdict::kYes : Verdict::kNo;
    }
    const bool stays_above = rule.rule != CoordinateRule::kGenerative ||
                             AllAxes(rule.geometry, [&](int axis) { return rule.geometry.DeltaOnAxis(axis, 0) >= 0; });
    return stays_above ? Verdict::kAsItsParents : Verdict::kNo;
  });
}

std::optional<int> LevelTable::NumHalvings(int level, int dimension) const {
  const SiteUnit& unit = levels_[level].unit;
  const auto voxels = static_cast<uint64_t>(unit.voxels[0]);
  if (!std::has_single_bit(voxels)) return std::nullopt;
  for (size_t axis = 0; axis < static_cast<size_t>(dimension); ++axis) {
    if (unit.parts[axis] != 1 || unit.voxels[axis] != unit.voxels[0]) return std::nullopt;
  }
  const bool is_strided = VisitAncestors(level, [](const CoordinateLevel& next) {
    const bool is_made_by_rule = next.parent >= 0 && next.united_with < 0 && !next.filter;
    return is_made_by_rule && kernels::MakesFinerSites(next.from.rule) ? Verdict::kNo : Verdict::kAsItsParents;
  });
  if (!is_strided) return std::nullopt;
  return static_cast<int>(std::bit_width(voxels)) - 1;
}

int LevelTable::Rulebook(int in_level, int out_level, const ConvGeometry& geometry) {
  const RulebookSpec spec = {in_level, out_level, DropIdleDilation(geometry)};
  const auto found = std::find(rulebooks_.begin(), rulebooks_.end(), spec);
  if (found != rulebooks_.end()) return static_cast<int>(found - rulebooks_.begin());
  if (rulebooks_.size() >= kMaxRulebooks) {
    is_full_ = true;
    return 0;
  }
  rulebooks_.push_back(spec);
  return static_cast<int>(rulebooks_.size()) - 1;
}

int LevelTable::SameSiteRulebook(int in_level, int out_level, int dimension) {
  return Rulebook(in_level, out_level, {.dimension = dimension});
}

}  // namespace voxserve
