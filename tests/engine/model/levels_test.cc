// Tests LevelTable: nodes share a level if they apply equal rules (in canonical form) to the same parent, and share a
// rulebook if levels and geometry are equal.

#include "engine/model/levels.h"

#include <gtest/gtest.h>

#include <optional>

namespace voxserve::levels_test {
namespace {

using kernels::Axes;
using kernels::ConvGeometry;
using kernels::CoordinateRule;

constexpr Axes kOnes = {1, 1, 1, 1};
constexpr Axes kNoPadding = {0, 0, 0, 0};

SiteRule Rule(CoordinateRule rule, Axes kernel, Axes stride, Axes padding = kNoPadding, Axes dilation = kOnes) {
  return {
      .rule = rule,
      .geometry = {.dimension = 3, .kernel_size = kernel, .stride = stride, .dilation = dilation, .padding = padding},
      .lower_bound = std::nullopt,
      .upper_bound = std::nullopt};
}

constexpr Axes kTwo = {2, 2, 2, 1};
constexpr Axes kThree = {3, 3, 3, 1};
constexpr Axes kCentred = {1, 1, 1, 0};

TEST(LevelTableTest, FloorDependsOnTheStrideAlone) {
  LevelTable table(std::nullopt);
  const int halved = table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, kTwo));
  EXPECT_EQ(halved, 1);
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kFloor, kThree, kTwo, kCentred)), halved);
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kFloor, kThree, kTwo, {2, 2, 2, 0}, kTwo)), halved);
  EXPECT_NE(table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, {2, 2, 1, 1})), halved);
  EXPECT_EQ(table.levels()[halved].parent, 0);
  EXPECT_EQ(table.levels()[halved].from.geometry.kernel_size, kOnes);
  EXPECT_EQ(table.levels()[halved].from.geometry.stride, kTwo);
}

TEST(LevelTableTest, TheParentMatters) {
  LevelTable table(std::nullopt);
  const SiteRule halve = Rule(CoordinateRule::kFloor, kTwo, kTwo);
  const int first = table.Apply(0, halve);
  const int second = table.Apply(first, halve);
  EXPECT_NE(first, second);
  EXPECT_EQ(table.levels()[second].parent, first);
  EXPECT_EQ(table.Apply(first, halve), second);
  // Halving twice and quartering make the same sites, but from different parents, so there are two levels.
  EXPECT_NE(table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, {4, 4, 4, 1})), second);
}

TEST(LevelTableTest, StrideOneUnderFloorKeepsTheLevel) {
  LevelTable table(std::nullopt);
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kFloor, kThree, kOnes, kCentred)), 0);
  EXPECT_EQ(table.levels().size(), 1U);
}

TEST(LevelTableTest, ExpandIsFloorWhereStrideIsOneOrTheKernel) {
  LevelTable table(std::nullopt);
  const int halved = table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, kTwo));
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kExpand, kTwo, kTwo)), halved);
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kExpand, kThree, kOnes, kCentred)), 0);
  const int mixed = table.Apply(0, Rule(CoordinateRule::kExpand, {3, 2, 1, 1}, {1, 2, 1, 1}, {1, 0, 0, 0}));
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kFloor, kOnes, {1, 2, 1, 1})), mixed);
  EXPECT_EQ(table.levels()[mixed].from.rule, CoordinateRule::kFloor);
  EXPECT_NE(table.Apply(0, Rule(CoordinateRule::kExpand, kThree, kTwo, kCentred)), halved);
}

TEST(LevelTableTest, ExpandDependsOnKernelDilationAndBounds) {
  LevelTable table(std::nullopt);
  const SiteRule rule = Rule(CoordinateRule::kExpand, kThree, kTwo, kCentred);
  SiteRule from_zero = rule;
  from_zero.lower_bound = kNoPadding;
  SiteRule up_to_nine = rule;
  up_to_nine.upper_bound = Axes{9, 9, 9, 0};
  const int plain = table.Apply(0, rule);
  EXPECT_EQ(table.Apply(0, rule), plain);
  EXPECT_NE(table.Apply(0, from_zero), plain);
  EXPECT_NE(table.Apply(0, up_to_nine), table.Apply(0, from_zero));
  EXPECT_NE(table.Apply(0, Rule(CoordinateRule::kExpand, kThree, kTwo, {2, 2, 2, 0}, kTwo)), plain);
  EXPECT_NE(table.Apply(0, Rule(CoordinateRule::kExpand, {5, 5, 5, 1}, kTwo, {2, 2, 2, 0})), plain);
  EXPECT_EQ(table.levels().size(), 6U);
}

TEST(LevelTableTest, DilationOfAKernelOfOneIsNothing) {
  LevelTable table(Axes{8, 8, 8, 1});
  const Axes flat = {3, 3, 1, 1};
  const int plain = table.Apply(0, Rule(CoordinateRule::kPadded, flat, kTwo));
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kPadded, flat, kTwo, kNoPadding, {1, 1, 2, 1})), plain);
  EXPECT_EQ(table.Rulebook(0, plain, Rule(CoordinateRule::kPadded, flat, kTwo).geometry),
            table.Rulebook(0, plain, Rule(CoordinateRule::kPadded, flat, kTwo, kNoPadding, {1, 1, 2, 1}).geometry));
}

TEST(LevelTableTest, PaddedFollowsTheSpatialShape) {
  // These are the sparse shapes of CenterPoint's backbone, z first: 41 -> 21 -> 11 -> 5 -> 2.
  LevelTable table(Axes{41, 1504, 1504, 1});
  const SiteRule down = Rule(CoordinateRule::kPadded, kThree, kTwo, kCentred);
  const int conv2 = table.Apply(0, down);
  const int conv3 = table.Apply(conv2, down);
  const int conv4 = table.Apply(conv3, Rule(CoordinateRule::kPadded, kThree, kTwo, {0, 1, 1, 0}));
  const int out = table.Apply(conv4, Rule(CoordinateRule::kPadded, {3, 1, 1, 1}, {2, 1, 1, 1}));
  EXPECT_EQ(table.levels()[conv2].spatial_shape, (Axes{21, 752, 752, 1}));
  EXPECT_EQ(table.levels()[conv3].spatial_shape, (Axes{11, 376, 376, 1}));
  EXPECT_EQ(table.levels()[conv4].spatial_shape, (Axes{5, 188, 188, 1}));
  EXPECT_EQ(table.levels()[out].spatial_shape, (Axes{2, 188, 188, 1}));
}

TEST(LevelTableTest, PaddedWithoutEffectKeepsTheLevel) {
  LevelTable table(Axes{8, 8, 8, 1});
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kPadded, kOnes, kOnes)), 0);
  EXPECT_EQ(table.Apply(0, Rule(CoordinateRule::kPadded, kThree, kOnes, kCentred)), 1);
}

TEST(LevelTableTest, FloorRoundsTheShapeUpAndExpandForgetsIt) {
  LevelTable table(Axes{9, 8, 1, 1});
  const int halved = table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, kTwo));
  EXPECT_EQ(table.levels()[halved].spatial_shape, (Axes{5, 4, 1, 1}));
  const int expanded = table.Apply(0, Rule(CoordinateRule::kExpand, kThree, kTwo, kCentred));
  EXPECT_FALSE(table.levels()[expanded].spatial_shape.has_value());
}

TEST(LevelTableTest, PaddedNeedsAShapeThatTheKernelFits) {
  const SiteRule down = Rule(CoordinateRule::kPadded, kThree, kTwo);
  EXPECT_FALSE(LevelTable(std::nullopt).CanApply(0, down));
  EXPECT_FALSE(LevelTable(Axes{8, 2, 8, 1}).CanApply(0, down));
  EXPECT_TRUE(LevelTable(Axes{8, 3, 8, 1}).CanApply(0, down));
  EXPECT_TRUE(LevelTable(std::nullopt).CanApply(0, Rule(CoordinateRule::kFloor, kThree, kTwo, kCentred)));
}

TEST(LevelTableTest, TransposedHasAShapeAndGenerativeHasNone) {
  LevelTable table(Axes{8, 7, 6, 1});
  SiteRule rule = Rule(CoordinateRule::kTransposed, kThree, kTwo, kCentred, {1, 2, 1, 1});
  const int fine = table.Apply(0, rule);
  EXPECT_EQ(table.levels()[fine].spatial_shape, (Axes{15, 15, 11, 1}));  // 7 * 2 - 2 + 2 + 1; y: 6 * 2 - 2 + 4 + 1
  EXPECT_EQ(table.Apply(0, rule), fine);
  rule.output_padding = {1, 0, 1, 0};
  const int larger = table.Apply(0, rule);
  EXPECT_NE(larger, fine);
  EXPECT_EQ(table.levels()[larger].spatial_shape, (Axes{16, 15, 12, 1}));
  const int generated = table.Apply(0, Rule(CoordinateRule::kGenerative, kTwo, kTwo));
  EXPECT_NE(table.Apply(0, Rule(CoordinateRule::kGenerative, kThree, kTwo, kCentred)), generated);
  EXPECT_FALSE(table.levels()[generated].spatial_shape.has_value());
  EXPECT_EQ(table.Apply(generated, Rule(CoordinateRule::kGenerative, kOnes, kOnes)), generated);
  EXPECT_FALSE(table.CanApply(generated, rule));
}

TEST(LevelTableTest, StridesRelateUnits) {
  LevelTable table(std::nullopt);
  const ConvGeometry halving = Rule(CoordinateRule::kFloor, kTwo, kTwo).geometry;
  const ConvGeometry by_six = Rule(CoordinateRule::kFloor, kTwo, {6, 6, 6, 1}).geometry;
  const int half = table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, kTwo));
  const int third = table.Apply(0, Rule(CoordinateRule::kGenerative, kThree, kThree, kCentred));
  EXPECT_TRUE(table.IsStrideBetween(0, half, halving));
  EXPECT_FALSE(table.IsStrideBetween(half, 0, halving));
  EXPECT_FALSE(table.IsStrideBetween(0, 0, halving));
  EXPECT_TRUE(table.IsStrideBetween(third, half, by_six));
  EXPECT_FALSE(table.IsStrideBetween(third, half, halving));
  // Halving and doubling leads back to the unit of level 0.
  const int back = table.Apply(half, Rule(CoordinateRule::kGenerative, kTwo, kTwo));
  EXPECT_TRUE(table.IsStrideBetween(0, back, Rule(CoordinateRule::kFloor, kThree, kOnes).geometry));
  // The unit of level `far` needs more than 64 bits, so it is unknown and no stride relates it to another.
  int far = 0;
  for (int i = 0; i < 12; ++i) far = table.Apply(far, Rule(CoordinateRule::kFloor, kOnes, {127, 127, 127, 1}));
  EXPECT_FALSE(table.IsStrideBetween(far, far, Rule(CoordinateRule::kFloor, kThree, kOnes).geometry));
}

TEST(LevelTableTest, RatiosOfUnitsAreInLowestTerms) {
  LevelTable table(std::nullopt);
  const auto expect = [&](int from, int to, const Axes& multiplier, const Axes& divisor) {
    const std::optional<kernels::SiteRatio> ratio = table.RatioBetween(from, to);
    ASSERT_TRUE(ratio.has_value());
    EXPECT_EQ(ratio->multiplier, multiplier);
    EXPECT_EQ(ratio->divisor, divisor);
  };
  const int half = table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, {2, 4, 1, 1}));
  const int third = table.Apply(0, Rule(CoordinateRule::kGenerative, kThree, kThree, kCentred));
  expect(0, 0, kOnes, kOnes);
  expect(0, half, kOnes, {2, 4, 1, 1});
  expect(half, 0, {2, 4, 1, 1}, kOnes);
  expect(0, third, kThree, kOnes);
  expect(half, third, {6, 12, 3, 1}, kOnes);
  expect(third, half, kOnes, {6, 12, 3, 1});
  expect(table.Apply(half, Rule(CoordinateRule::kFloor, kThree, kThree)), half, kThree, kOnes);
  // There is no ratio if it needs more than 31 bits, or if one of the units is unknown.
  int far = 0;
  for (int i = 0; i < 4; ++i) far = table.Apply(far, Rule(CoordinateRule::kFloor, kOnes, {127, 127, 127, 1}));
  EXPECT_TRUE(table.RatioBetween(0, far).has_value());
  const int further = table.Apply(far, Rule(CoordinateRule::kFloor, kOnes, {127, 127, 127, 1}));
  EXPECT_FALSE(table.RatioBetween(0, further).has_value());
  EXPECT_FALSE(table.RatioBetween(further, 0).has_value());
  expect(far, further, kOnes, {127, 127, 127, 1});
  for (int i = 0; i < 12; ++i) far = table.Apply(far, Rule(CoordinateRule::kFloor, kOnes, {127, 127, 127, 1}));
  EXPECT_FALSE(table.RatioBetween(far, far).has_value());
}

TEST(LevelTableTest, UnionsAreSharedWhateverTheirOrderAndNesting) {
  LevelTable table(Axes{8, 9, 10, 1});
  const int low = table.Filter(0, {.lower = {0, 0, 0, 0}, .upper = {4, 4, 4, 4}});
  const int high = table.Filter(0, {.lower = {3, 3, 3, 3}});
  EXPECT_NE(low, high);
  EXPECT_EQ(table.Filter(0, {.lower = {3, 3, 3, 3}}), high);
  EXPECT_NE(table.Filter(low, {.lower = {3, 3, 3, 3}}), high);
  const int both = table.Union({high, low});
  EXPECT_EQ(table.levels()[both].parent, low);
  EXPECT_EQ(table.levels()[both].united_with, high);
  EXPECT_EQ(table.levels()[both].spatial_shape, (Axes{8, 9, 10, 1}));
  EXPECT_EQ(table.Union({low, high}), both);
  EXPECT_EQ(table.Union({low, high, low}), both);
  EXPECT_EQ(table.Union({both, high}), both);
  EXPECT_EQ(table.Union({low, low}), low);
  const int third = table.Apply(0, Rule(CoordinateRule::kGenerative, kThree, kOnes, kCentred));
  const int all = table.Union({low, high, third});
  EXPECT_FALSE(table.levels()[all].spatial_shape.has_value());
  EXPECT_EQ(table.Union({third, both}), all);
  EXPECT_EQ(table.Union({table.Union({third, high}), low}), all);
  // Parents come before their children.
  for (size_t level = 1; level < table.levels().size(); ++level) {
    EXPECT_LT(table.levels()[level].parent, static_cast<int>(level));
    EXPECT_LT(table.levels()[level].united_with, static_cast<int>(level));
  }
}

TEST(LevelTableTest, PrunesAreSharedByScoreAndThreshold) {
  LevelTable table(std::nullopt);
  const int pruned = table.Filter(0, {.score_node = 4, .threshold = 0.5f});
  EXPECT_EQ(table.Filter(0, {.score_node = 4, .threshold = 0.5f}), pruned);
  EXPECT_NE(table.Filter(0, {.score_node = 4, .threshold = 0.25f}), pruned);
  EXPECT_NE(table.Filter(0, {.score_node = 5, .threshold = 0.5f}), pruned);
}

TEST(LevelTableTest, UnitsOfUnions) {
  LevelTable table(std::nullopt);
  const int half = table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, kTwo));
  const int back = table.Apply(half, Rule(CoordinateRule::kGenerative, kTwo, kTwo));
  EXPECT_FALSE(table.HaveOneUnit(0, half));
  EXPECT_TRUE(table.HaveOneUnit(0, back));
  const int both = table.Union({0, back});
  EXPECT_TRUE(table.HaveOneUnit(both, 0));
  const int coarse = table.Apply(both, Rule(CoordinateRule::kFloor, kTwo, kTwo));
  EXPECT_TRUE(table.HaveOneUnit(coarse, half));
  EXPECT_TRUE(table.IsStrideBetween(both, half, Rule(CoordinateRule::kFloor, kTwo, kTwo).geometry));
  // A level with an unknown unit has one unit with itself alone.
  int far = 0;
  for (int i = 0; i < 12; ++i) far = table.Apply(far, Rule(CoordinateRule::kFloor, kOnes, {127, 127, 127, 1}));
  const int beside = table.Filter(far, {.lower = kThree});
  EXPECT_TRUE(table.HaveOneUnit(far, far));
  EXPECT_FALSE(table.HaveOneUnit(far, beside));
}

TEST(LevelTableTest, SitesBelowZero) {
  LevelTable table(kernels::Axes{64, 64, 64, 1});
  EXPECT_TRUE(table.IsNeverNegative(0, 3));
  const int half = table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, kTwo));
  EXPECT_TRUE(table.IsNeverNegative(half, 3));
  EXPECT_TRUE(table.IsNeverNegative(table.Apply(half, Rule(CoordinateRule::kPadded, kThree, kTwo, kCentred)), 3));
  EXPECT_TRUE(table.IsNeverNegative(table.Apply(half, Rule(CoordinateRule::kTransposed, kThree, kTwo, kCentred)), 3));
  EXPECT_TRUE(table.IsNeverNegative(table.Apply(half, Rule(CoordinateRule::kGenerative, kTwo, kTwo)), 3));
  SiteRule expand = Rule(CoordinateRule::kExpand, kThree, kTwo, kCentred);
  EXPECT_TRUE(table.IsNeverNegative(table.Apply(half, expand), 3));
  // A position of -1 or more, in the parent's units, is at a site of 0 or more; one of -2 is not.
  expand.lower_bound = {-1, 0, -1, 0};
  EXPECT_TRUE(table.IsNeverNegative(table.Apply(half, expand), 3));
  expand.lower_bound = {0, 0, -2, 0};
  EXPECT_FALSE(table.IsNeverNegative(table.Apply(half, expand), 3));
  const int grown = table.Apply(half, Rule(CoordinateRule::kGenerative, kThree, kOnes, kCentred));
  EXPECT_FALSE(table.IsNeverNegative(grown, 3));
  EXPECT_FALSE(table.IsNeverNegative(table.Apply(grown, Rule(CoordinateRule::kFloor, kTwo, kTwo)), 3));
  EXPECT_FALSE(table.IsNeverNegative(table.Union({half, grown}), 3));
  EXPECT_FALSE(table.IsNeverNegative(table.Filter(grown, {.score_node = 4}), 3));
  Axes lower = kernels::kLowestSite;
  lower[0] = lower[1] = 0;
  EXPECT_FALSE(table.IsNeverNegative(table.Filter(grown, {.lower = lower}), 3));
  lower[2] = 5;
  EXPECT_TRUE(table.IsNeverNegative(table.Filter(grown, {.lower = lower}), 3));
}

TEST(LevelTableTest, HalvingsOfStrides) {
  LevelTable table(kernels::Axes{64, 64, 64, 1});
  EXPECT_EQ(table.NumHalvings(0, 3), 0);
  const int half = table.Apply(0, Rule(CoordinateRule::kPadded, kThree, kTwo, kCentred));
  EXPECT_EQ(table.NumHalvings(half, 3), 1);
  const int eighth = table.Apply(half, Rule(CoordinateRule::kFloor, kOnes, {4, 4, 4, 1}));
  EXPECT_EQ(table.NumHalvings(eighth, 3), 3);
  const int part = table.Filter(eighth, {.score_node = 4});
  EXPECT_EQ(table.NumHalvings(part, 3), 3);
  EXPECT_EQ(table.NumHalvings(table.Union({part, eighth}), 3), 3);
  EXPECT_EQ(table.NumHalvings(table.Apply(0, Rule(CoordinateRule::kFloor, kThree, kThree)), 3), std::nullopt);
  EXPECT_EQ(table.NumHalvings(table.Apply(0, Rule(CoordinateRule::kFloor, kOnes, {2, 2, 4, 1})), 3), std::nullopt);
  const int finer = table.Apply(0, Rule(CoordinateRule::kGenerative, kTwo, kTwo));
  EXPECT_EQ(table.NumHalvings(finer, 3), std::nullopt);
  const int back = table.Apply(half, Rule(CoordinateRule::kTransposed, kThree, kTwo, kCentred));
  EXPECT_EQ(table.NumHalvings(back, 3), std::nullopt);
  EXPECT_EQ(table.NumHalvings(table.Union({0, back}), 3), std::nullopt);
}

// Unions of two parts of a union: the walk over ancestors must not visit them again and again.
TEST(LevelTableTest, ManyUnionsOfParts) {
  LevelTable table(std::nullopt);
  int level = 0;
  for (int i = 0; i < 120; ++i) {
    Axes upper = kernels::kBeyondSites;
    upper[0] = 1000 - i;
    level = table.Union({table.Filter(level, {.upper = upper}), table.Filter(level, {.score_node = i})});
  }
  EXPECT_FALSE(table.is_full());
  EXPECT_TRUE(table.IsNeverNegative(level, 3));
  EXPECT_EQ(table.NumHalvings(level, 3), 0);
}

TEST(LevelTableTest, RulebooksAreSharedByLevelsAndGeometry) {
  LevelTable table(std::nullopt);
  const ConvGeometry centred = Rule(CoordinateRule::kFloor, kThree, kOnes, kCentred).geometry;
  const int level = table.Apply(0, Rule(CoordinateRule::kFloor, kTwo, kTwo));
  const int first = table.Rulebook(0, 0, centred);
  EXPECT_EQ(table.Rulebook(0, 0, centred), first);
  EXPECT_NE(table.Rulebook(level, level, centred), first);
  EXPECT_NE(table.Rulebook(0, 0, Rule(CoordinateRule::kFloor, kThree, kOnes, {2, 2, 2, 0}, kTwo).geometry), first);
  EXPECT_EQ(table.rulebooks().size(), 3U);
}

}  // namespace
}  // namespace voxserve::levels_test
