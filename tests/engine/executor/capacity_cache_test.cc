// Tests CapacityCache, which gives batches of one kind the same capacities .

#include "engine/executor/capacity_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "engine/executor/site_forecast.h"

namespace voxserve::capacity_cache_test {
namespace {

constexpr uint64_t kProgram = 1;

BatchCapacities Wanted(int64_t points, std::vector<int64_t> sites) {
  return {.sites = std::move(sites), .axis_bits = {12, 12, 10, 1}, .points = points, .upload_bytes = 16 * points + 256};
}

// Returns all numbers on which the layout of memory depends.
std::vector<int64_t> LayoutOf(const BatchCapacities& capacities) {
  std::vector<int64_t> layout = capacities.sites;
  layout.insert(layout.end(), {capacities.points, capacities.upload_bytes});
  return layout;
}

bool IsSame(const BatchCapacities& a, const BatchCapacities& b) { return LayoutOf(a) == LayoutOf(b); }

TEST(CapacityCacheTest, HoldWhatIsWantedAndLittleMore) {
  for (const int64_t points : {1, 100, 1000, 65'536, 110'725, 2'000'000}) {
    CapacityCache capacities;
    const BatchCapacities made = capacities.Fit(kProgram, 1, Wanted(points, {points, points / 4}));
    EXPECT_GE(made.points, points);
    EXPECT_LE(made.points, points + points / 8 + 256);
    EXPECT_GE(made.sites[0], points);
    EXPECT_LE(made.sites[0], points + points / 8 + 256);
    EXPECT_GE(made.sites[1], points / 4);
    EXPECT_GE(made.upload_bytes, 16 * points + 256);
    EXPECT_EQ(made.upload_bytes % 256, 0);
    EXPECT_EQ(made.axis_bits, (kernels::Axes{12, 12, 10, 1}));
  }
}

TEST(CapacityCacheTest, ServeBatchesThatFitAndAreNotFarSmaller) {
  CapacityCache capacities;
  const BatchCapacities first = capacities.Fit(kProgram, 1, Wanted(100'000, {90'000, 20'000}));
  EXPECT_TRUE(IsSame(capacities.Fit(kProgram, 1, Wanted(104'000, {92'000, 20'500})), first));
  EXPECT_TRUE(IsSame(capacities.Fit(kProgram, 1, Wanted(95'000, {80'000, 17'000})), first));
  EXPECT_TRUE(IsSame(capacities.Fit(kProgram, 1, Wanted(100'000, {90'000, 20'000})), first));
}

TEST(CapacityCacheTest, ChangeForABatchThatDoesNotFit) {
  CapacityCache capacities;
  const BatchCapacities first = capacities.Fit(kProgram, 1, Wanted(100'000, {90'000, 20'000}));
  const BatchCapacities more_points = capacities.Fit(kProgram, 1, Wanted(first.points + 1, {90'000, 20'000}));
  EXPECT_GT(more_points.points, first.points);
  const BatchCapacities more_sites = capacities.Fit(kProgram, 1, Wanted(100'000, {90'000, 40'000}));
  EXPECT_GE(more_sites.sites[1], 40'000);
  BatchCapacities wanted = Wanted(100'000, {90'000, 40'000});
  wanted.upload_bytes = more_sites.upload_bytes + 1;
  EXPECT_GE(capacities.Fit(kProgram, 1, wanted).upload_bytes, wanted.upload_bytes);
}

// A capacity that still serves is kept, so that two kinds of scans settle on capacities for both.
TEST(CapacityCacheTest, ChangeOnlyWhatDoesNotFit) {
  CapacityCache capacities;
  const BatchCapacities many_points = capacities.Fit(kProgram, 1, Wanted(125'000, {70'000, 20'000}));
  const BatchCapacities many_sites = capacities.Fit(kProgram, 1, Wanted(100'000, {90'000, 20'000}));
  EXPECT_EQ(many_sites.points, many_points.points);
  EXPECT_GE(many_sites.sites[0], 90'000);
  EXPECT_TRUE(IsSame(capacities.Fit(kProgram, 1, Wanted(125'000, {70'000, 20'000})), many_sites));
}

TEST(CapacityCacheTest, ShrinkForABatchThatIsFarSmaller) {
  CapacityCache capacities;
  const BatchCapacities large = capacities.Fit(kProgram, 1, Wanted(130'000, {120'000, 50'000}));
  const BatchCapacities fewer_sites = capacities.Fit(kProgram, 1, Wanted(130'000, {120'000, 20'000}));
  EXPECT_LT(fewer_sites.sites[1], large.sites[1]);
  const BatchCapacities fewer_points = capacities.Fit(kProgram, 1, Wanted(70'000, {60'000, 20'000}));
  EXPECT_LT(fewer_points.points, large.points);
  BatchCapacities wanted = Wanted(130'000, {120'000, 20'000});
  wanted.upload_bytes *= 4;
  const BatchCapacities wide_points = capacities.Fit(kProgram, 1, wanted);
  EXPECT_LT(capacities.Fit(kProgram, 1, Wanted(130'000, {120'000, 20'000})).upload_bytes, wide_points.upload_bytes);
}

TEST(CapacityCacheTest, KeepABitTooManyForCoordinates) {
  CapacityCache capacities;
  BatchCapacities wanted = Wanted(100'000, {90'000});
  const auto bits = [&](int32_t axis_bits) {
    wanted.axis_bits[2] = axis_bits;
    const BatchCapacities fit = capacities.Fit(kProgram, 1, wanted);
    EXPECT_EQ(fit.axis_bits[0], 12);  // each axis by itself
    return fit.axis_bits[2];
  };
  EXPECT_EQ(bits(12), 12);
  EXPECT_EQ(bits(13), 13);
  EXPECT_EQ(bits(12), 13);
  EXPECT_EQ(bits(11), 11);
  EXPECT_EQ(bits(0), 0) << "as many as a key has";
  EXPECT_EQ(bits(12), 12);
}

// Two vehicles with different sensors, in any order: their capacities settle, so that their captures are replayed.
TEST(CapacityCacheTest, SettleForScansOfTwoSizes) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> noise(0.97, 1.03);
  for (const auto& [small, large] :
       {std::pair(70'000, 126'000), std::pair(93'000, 130'000), std::pair(280'000, 504'000)}) {
    CapacityCache capacities;
    std::set<std::vector<int64_t>> late;
    for (int batch = 0; batch < 400; ++batch) {
      const auto points = static_cast<int64_t>((batch % 2 == 0 ? small : large) * noise(random));
      const auto sites = static_cast<double>(points) * 0.75;
      const BatchCapacities made = capacities.Fit(kProgram, 1,
                                                  Wanted(points, {static_cast<int64_t>(sites * noise(random)),
                                                                  static_cast<int64_t>(sites / 4 * noise(random))}));
      if (batch >= 100) late.insert(LayoutOf(made));
    }
    EXPECT_LE(late.size(), 4u) << small << " and " << large << " points";
  }
}

TEST(CapacityCacheTest, AreThoseOfTheKind) {
  CapacityCache capacities;
  const BatchCapacities first = capacities.Fit(kProgram, 1, Wanted(100'000, {90'000}));
  EXPECT_FALSE(IsSame(capacities.Fit(kProgram, 4, Wanted(120'000, {100'000})), first));
  EXPECT_TRUE(IsSame(capacities.Fit(kProgram, 1, Wanted(100'000, {90'000})), first));
  EXPECT_EQ(capacities.num_kinds(), 2u);
  for (uint64_t program = 2; program < 3000; ++program) capacities.Fit(program, 4, Wanted(100, {100}));
  EXPECT_LE(capacities.num_kinds(), 256u) << "programs come and go";
}

// Simulates a drive: each scan has 100,000 to 125,000 points, and 0.68 to 0.78 voxels per point.
TEST(CapacityCacheTest, ADriveHasFewCapacities) {
  SiteForecast forecast;
  CapacityCache capacities;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> points_of(100'000, 125'000), sites_a_point(0.68, 0.78);
  std::set<std::vector<int64_t>> kept, forecasts;
  int num_too_small = 0;
  for (int scan = 0; scan < 1000; ++scan) {
    const auto points = static_cast<int64_t>(points_of(random));
    const auto voxels = static_cast<int64_t>(static_cast<double>(points) * sites_a_point(random));
    if (forecast.has_learned(points)) {
      BatchCapacities wanted = forecast.CapacitiesFor(points);
      forecasts.insert(wanted.sites);
      wanted.points = points;
      wanted.upload_bytes = 16 * points;
      const BatchCapacities made = capacities.Fit(kProgram, 1, wanted);
      ASSERT_GE(made.points, points);
      num_too_small += made.sites[0] < voxels ? 1 : 0;
      kept.insert(LayoutOf(made));
    }
    forecast.Learn(points, {voxels, voxels / 3, voxels / 8}, {});
  }
  EXPECT_LE(kept.size(), 5u);
  EXPECT_GT(forecasts.size(), 2 * kept.size());
  EXPECT_LE(num_too_small, 10);
}

}  // namespace
}  // namespace voxserve::capacity_cache_test
