#pragma once

// Which coordinate levels and rulebooks a network has, found by structure and not by name.
//
// A level is a set of sites that every sample gets: level 0 are the occupied voxels, every other one follows from its
// parent by a rule, is the union of two others or some of another's sites. Two convolutions that make the same sites
// from the same parent share a level, and what else they differ in (kernel size under FLOOR, channels, names) does not
// matter. A rulebook belongs to (input level, output level, geometry) and is shared likewise; an inverse convolution
// uses that of its partner with the pairs swapped.
//
// Canonical geometry (what LevelTable compares):
//  - an axis of kernel size 1 has dilation 1;
//  - FLOOR sites depend on the stride alone: the level keeps kernel size 1, dilation 1, padding 0;
//  - EXPAND with stride 1 or kernel size on every axis is FLOOR (TorchSparse, MLSys 2022), its bounds have no effect;
//  - FLOOR with stride 1, and every other rule with kernel size 1, stride 1 and no padding, stay on the input's level.
//
// Plain values; no thread of their own.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/site_filter.h"
#include "kernels/coordinates/site_position.h"

namespace voxserve {

// How the output sites of a strided or transposed convolution follow from its input's.
struct SiteRule {
  kernels::CoordinateRule rule = kernels::CoordinateRule::kFloor;
  kernels::ConvGeometry geometry;               // canonical padding
  std::optional<kernels::Axes> lower_bound;     // EXPAND, in the parent's sites; none: the sample's minimum
  std::optional<kernels::Axes> upper_bound;     // EXPAND, likewise; none: unbounded
  kernels::Axes output_padding = {0, 0, 0, 0};  // TRANSPOSED: added to the spatial shape

  bool operator==(const SiteRule&) const = default;
};

// The step from one site of a level to the next, in voxels per axis: voxels / parts in lowest terms. 0 / 0 where that
// takes more than 64 bits, which equals nothing.
struct SiteUnit {
  std::array<int64_t, kernels::kMaxDimension> voxels = {1, 1, 1, 1};
  std::array<int64_t, kernels::kMaxDimension> parts = {1, 1, 1, 1};
};

// Which of a level's sites stay.
struct SiteFilter {
  kernels::Axes lower = kernels::kLowestSite;  // lower <= c < upper, in the level's own units
  kernels::Axes upper = kernels::kBeyondSites;
  // Of the graph: one channel on the level, where only scores above the threshold stay. -1: all do.
  int score_node = -1;
  float threshold = 0;

  bool operator==(const SiteFilter&) const = default;
};

struct CoordinateLevel {
  int parent = -1;       // a smaller level id; -1 for level 0
  SiteRule from = {};    // how the sites follow from the parent's; of no meaning for level 0 and the two below
  int united_with = -1;  // of a union: the other parent, a level id between the parent's and this one
  std::optional<SiteFilter> filter;  // of a part of the parent's sites
  // Sites lie in [0, spatial_shape) on every axis. Known below a voxelize with ORIGIN_RANGE, through FLOOR, PADDED and
  // TRANSPOSED, for parts of such levels and unions of them.
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
  // Level 0 alone; shape of the voxel grid where the network has one.
  explicit LevelTable(std::optional<kernels::Axes> spatial_shape);

  // Parents come before their children.
  const std::vector<CoordinateLevel>& levels() const { return levels_; }
  const std::vector<RulebookSpec>& rulebooks() const { return rulebooks_; }

  // The level that `rule` makes of `parent`, new where there is none yet. PADDED and TRANSPOSED need the parent's
  // spatial_shape and an output that has one (CanApply).
  int Apply(int parent, const SiteRule& rule);

  // True unless PADDED or TRANSPOSED have no spatial shape to work on, or their output would have none, or one beyond
  // what a coordinate's key can hold.
  bool CanApply(int parent, const SiteRule& rule) const;

  // The level of all sites that any of these has, new where there is none yet: that of more than two as a union of two,
  // whatever their order and whichever of them are unions themselves. All are of one unit.
  int Union(const std::vector<int>& levels);

  // The level of some of the parent's sites, new where there is none yet.
  int Filter(int parent, const SiteFilter& filter);

  // True where a step on both is the same.
  bool HaveOneUnit(int a, int b) const;

  // True where a convolution of this stride can lead from one level to the other: a step on `coarse` is `stride` steps
  // on `fine`.
  bool IsStrideBetween(int fine, int coarse, const kernels::ConvGeometry& geometry) const;

  // A step on `from` in steps on `to`; none where it takes more than 31 bits.
  std::optional<kernels::SiteRatio> RatioBetween(int from, int to) const;

  // The rulebook of these, new where there is none yet.
  int Rulebook(int in_level, int out_level, const kernels::ConvGeometry& geometry);
  // That by which every site of the one finds itself on the other.
  int SameSiteRulebook(int in_level, int out_level, int dimension);

 private:
  int FindOrAdd(const CoordinateLevel& level);
  int UnionOfTwo(int a, int b);

  std::vector<CoordinateLevel> levels_;
  std::vector<RulebookSpec> rulebooks_;
};

}  // namespace voxserve
