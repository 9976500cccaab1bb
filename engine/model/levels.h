#pragma once

// LevelTable finds a network's coordinate levels and rulebooks. It compares their structure, not the names of nodes.
//
// A site is an integer position that has a row of features. A level is the set of all sites at one unit; each sample of
// a batch has its own sites on every level. Level 0 has the occupied voxels. Every other level follows from its parent
// by a rule, is the union of two levels, or has some of its parent's sites. Convolutions that make the same sites from
// the same parent share a level, whatever else differs (kernel size under FLOOR, channels, names).
//
// A rulebook says which input rows each output row of a convolution reads, cell by cell of the kernel. It belongs to
// (input level, output level, geometry), and convolutions with all three in common share it. An inverse convolution
// uses its partner's rulebook with the pairs swapped.
//
// LevelTable compares rules (kernels::CoordinateRule: FLOOR, PADDED, EXPAND, TRANSPOSED, GENERATIVE) in canonical form:
//  - an axis of kernel size 1 has dilation 1;
//  - FLOOR sites depend on the stride alone: the level keeps kernel size 1, dilation 1, padding 0;
//  - EXPAND makes the sites of FLOOR if, on every axis, the stride is 1 or equals the kernel size (TorchSparse, MLSys
//    2022). It then becomes FLOOR, and its bounds have no effect;
//  - FLOOR with stride 1, and every other rule with kernel size 1, stride 1 and no padding, make no new level: the
//    result is on the input's level.
//
// The types of this header are plain values without locks. The model loader fills a LevelTable for each Graph.

#include <array>
#include <cstddef>
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
  std::optional<kernels::Axes> lower_bound;     // EXPAND, in the parent's units; nullopt: the minimum of the sample
  std::optional<kernels::Axes> upper_bound;     // EXPAND, in the parent's units; nullopt: no bound
  kernels::Axes output_padding = {0, 0, 0, 0};  // TRANSPOSED: added to the spatial shape

  bool operator==(const SiteRule&) const = default;
};

// SiteUnit is the distance from one position of a level to the next, in voxels per axis: voxels / parts, in lowest
// terms. If the fraction needs more than 64 bits, both are 0; such a unit counts as different from every other unit.
struct SiteUnit {
  std::array<int64_t, kernels::kMaxDimension> voxels = {1, 1, 1, 1};
  std::array<int64_t, kernels::kMaxDimension> parts = {1, 1, 1, 1};
};

// SiteFilter says which of a level's sites stay.
struct SiteFilter {
  kernels::Axes lower = kernels::kLowestSite;  // lower <= c < upper, in the level's own units
  kernels::Axes upper = kernels::kBeyondSites;
  // Index of the graph node with the scores, one channel on the level: only sites with a score above the threshold
  // stay. -1: there are no scores.
  int score_node = -1;
  float threshold = 0;

  bool operator==(const SiteFilter&) const = default;
};

struct CoordinateLevel {
  int parent = -1;       // a smaller level id; -1 for level 0
  SiteRule from = {};    // how the sites follow from the parent's; unused for level 0, unions and filtered levels
  int united_with = -1;  // for a union: the other parent, a level id between the parent's and this one
  std::optional<SiteFilter> filter;  // for a level that has some of the parent's sites
  // Sites lie in [0, spatial_shape) on every axis. nullopt: not known. The shape is known if the voxelize has
  // ORIGIN_RANGE and every level from level 0 to this one is made by FLOOR, PADDED or TRANSPOSED, is a union, or is
  // filtered.
  std::optional<kernels::Axes> spatial_shape;
  SiteUnit unit;
};

struct RulebookSpec {
  int in_level = 0;
  int out_level = 0;
  kernels::ConvGeometry geometry;

  bool operator==(const RulebookSpec&) const = default;
};

// Limits of a table. Networks have some ten levels and some tens of rulebooks.
inline constexpr size_t kMaxLevels = 500;
inline constexpr size_t kMaxRulebooks = 5000;

class LevelTable {
 public:
  LevelTable() = default;  // no level
  // Makes a table with only level 0. spatial_shape: that of the voxel grid, if the network has one.
  explicit LevelTable(std::optional<kernels::Axes> spatial_shape);

  // Parents come before their children.
  const std::vector<CoordinateLevel>& levels() const { return levels_; }
  const std::vector<RulebookSpec>& rulebooks() const { return rulebooks_; }
  // Returns true if a level or a rulebook was asked for beyond the limits. What the table then returned is wrong.
  bool is_full() const { return is_full_; }

  // Returns the level that `rule` makes from `parent`; adds it where it does not exist yet. For PADDED and TRANSPOSED,
  // CanApply must be true.
  int Apply(int parent, const SiteRule& rule);

  // Returns false only for PADDED and TRANSPOSED: if the parent has no spatial shape, or if the output's shape would be
  // empty or too large.
  bool CanApply(int parent, const SiteRule& rule) const;

  // Returns the level of all sites that any of these levels has; adds it where it does not exist yet. A union of more
  // than two levels is made of unions of two. The result does not depend on the order of `levels`, and a level that is
  // a union itself counts as the levels that it unites. All levels must have the same unit.
  int Union(const std::vector<int>& levels);

  // Returns the level of the parent's sites that the filter keeps; adds it where it does not exist yet.
  int Filter(int parent, const SiteFilter& filter);

  // Returns true if both levels have the same unit.
  bool HaveOneUnit(int a, int b) const;

  // Returns true if a convolution with this geometry's stride can connect the two levels: the unit of `coarse` is
  // stride times the unit of `fine` on every axis.
  bool IsStrideBetween(int fine, int coarse, const kernels::ConvGeometry& geometry) const;

  // Returns the unit of `from` divided by the unit of `to`; nullopt if the fraction needs more than 31 bits.
  std::optional<kernels::SiteRatio> RatioBetween(int from, int to) const;

  // Returns true if no site of the level can have a coordinate below 0, provided that no voxel has.
  bool IsNeverNegative(int level, int dimension) const;

  // Returns l if the level's unit is 2^l voxels on each of the dimension's axes, and its sites follow from the voxels
  // by strides; the level may be a union, or have some of another's sites. Returns nullopt for other levels.
  std::optional<int> NumHalvings(int level, int dimension) const;

  // Returns the rulebook of these levels and geometry; adds it where it does not exist yet.
  int Rulebook(int in_level, int out_level, const kernels::ConvGeometry& geometry);
  // Returns the rulebook that pairs every site of in_level with the same site of out_level.
  int SameSiteRulebook(int in_level, int out_level, int dimension);

 private:
  // Whether a level has a property: yes or no whatever its parents are, or if its parents have it.
  enum class Verdict { kNo, kYes, kAsItsParents };
  // Returns true if the level has the property. visit(CoordinateLevel) returns a Verdict. Visits each level once.
  template <typename Visitor>
  bool VisitAncestors(int level, const Visitor& visit) const;
  int FindOrAdd(const CoordinateLevel& level);
  int UnionOfTwo(int a, int b);

  std::vector<CoordinateLevel> levels_;
  std::vector<RulebookSpec> rulebooks_;
  bool is_full_ = false;
};

}  // namespace voxserve
