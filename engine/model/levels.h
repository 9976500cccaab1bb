#pragma once

// LevelTable finds a network's coordinate levels and rulebooks. It compares their structure, not the names of nodes.
//
// A level is a set of sites that every sample gets. Level 0 has the occupied voxels. Every other level follows from its
// parent by a rule, is the union of two levels, or has some of another level's sites. Convolutions that make the same
// sites from the same parent share a level, whatever else differs (kernel size under FLOOR, channels, names). A
// rulebook belongs to (input level, output level, geometry), and convolutions share it in the same way. An inverse
// convolution uses its partner's rulebook with the pairs swapped.
//
// LevelTable compares canonical geometry:
//  - an axis of kernel size 1 has dilation 1;
//  - FLOOR sites depend on the stride alone: the level keeps kernel size 1, dilation 1, padding 0;
//  - EXPAND with stride 1 or kernel size on every axis is FLOOR (TorchSparse, MLSys 2022), its bounds have no effect;
//  - FLOOR with stride 1, and every other rule with kernel size 1, stride 1 and no padding, stay on the input's level.
//
// These are plain values, without threads.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/site_filter.h"
#include "kernels/coordinates/site_position.h"

namespace voxserve {

// SiteRule says how the output sites of a strided or transposed convolution follow from its input's sites.
struct SiteRule {
  kernels::CoordinateRule rule = kernels::CoordinateRule::kFloor;
  kernels::ConvGeometry geometry;               // canonical padding
  std::optional<kernels::Axes> lower_bound;     // EXPAND, in the parent's sites; none: the sample's minimum
  std::optional<kernels::Axes> upper_bound;     // EXPAND, in the parent's sites; none: unbounded
  kernels::Axes output_padding = {0, 0, 0, 0};  // TRANSPOSED: added to the spatial shape

  bool operator==(const SiteRule&) const = default;
};

// SiteUnit is the step from one site of a level to the next, in voxels per axis: voxels / parts in lowest terms. Where
// that takes more than 64 bits it is 0 / 0, which equals no unit.
struct SiteUnit {
  std::array<int64_t, kernels::kMaxDimension> voxels = {1, 1, 1, 1};
  std::array<int64_t, kernels::kMaxDimension> parts = {1, 1, 1, 1};
};

// SiteFilter says which of a level's sites stay.
struct SiteFilter {
  kernels::Axes lower = kernels::kLowestSite;  // lower <= c < upper, in the level's own units
  kernels::Axes upper = kernels::kBeyondSites;
  // Index of a node of the graph with one channel on the level, the scores: sites with a score above the threshold
  // stay. -1: scores do not matter.
  int score_node = -1;
  float threshold = 0;

  bool operator==(const SiteFilter&) const = default;
};

struct CoordinateLevel {
  int parent = -1;       // a smaller level id; -1 for level 0
  SiteRule from = {};    // how the sites follow from the parent's; unused for level 0, unions and filtered levels
  int united_with = -1;  // for a union: the other parent, a level id between the parent's and this one
  std::optional<SiteFilter> filter;  // for a level that has some of the parent's sites
  // Sites lie in [0, spatial_shape) on every axis. Known where the voxelize has ORIGIN_RANGE and the levels in between
  // are made by FLOOR, PADDED or TRANSPOSED, are unions, or are filtered; else nullopt.
  std::optional<kernels::Axes> spatial_shape;
  SiteUnit unit;
};

struct RulebookSpec {
  int in_level = 0;
  int out_level = 0;
  kernels::ConvGeometry geometry;

  bool operator==(const RulebookSpec&) const = default;
};

class LevelTable {
 public:
  LevelTable() = default;  // no level
  // Makes a table with level 0 alone. spatial_shape: of the voxel grid, where the network has one.
  explicit LevelTable(std::optional<kernels::Axes> spatial_shape);

  // Parents come before their children.
  const std::vector<CoordinateLevel>& levels() const { return levels_; }
  const std::vector<RulebookSpec>& rulebooks() const { return rulebooks_; }

  // Returns the level that `rule` makes from `parent`; adds it where it does not exist yet. For PADDED and TRANSPOSED,
  // CanApply must be true.
  int Apply(int parent, const SiteRule& rule);

  // False only for PADDED and TRANSPOSED: where the parent has no spatial shape, or where the output's shape would be
  // empty or too large.
  bool CanApply(int parent, const SiteRule& rule) const;

  // Returns the level of all sites that any of these levels has; adds it where it does not exist yet. A union of more
  // than two is made of unions of two; it is the same level in any order, and where some of them are unions already.
  // All levels must have the same unit.
  int Union(const std::vector<int>& levels);

  // Returns the level of some of the parent's sites; adds it where it does not exist yet.
  int Filter(int parent, const SiteFilter& filter);

  // True where both levels have the same unit.
  bool HaveOneUnit(int a, int b) const;

  // True where a convolution of this stride can connect the two levels: a step on `coarse` is `stride` steps on `fine`.
  bool IsStrideBetween(int fine, int coarse, const kernels::ConvGeometry& geometry) const;

  // Returns a step on `from` as a number of steps on `to`; nullopt where the ratio takes more than 31 bits.
  std::optional<kernels::SiteRatio> RatioBetween(int from, int to) const;

  // Returns the rulebook of these levels and geometry; adds it where it does not exist yet.
  int Rulebook(int in_level, int out_level, const kernels::ConvGeometry& geometry);
  // Returns the rulebook that pairs every site of in_level with the same site of out_level.
  int SameSiteRulebook(int in_level, int out_level, int dimension);

 private:
  int FindOrAdd(const CoordinateLevel& level);
  int UnionOfTwo(int a, int b);

  std::vector<CoordinateLevel> levels_;
  std::vector<RulebookSpec> rulebooks_;
};

}  // namespace voxserve
