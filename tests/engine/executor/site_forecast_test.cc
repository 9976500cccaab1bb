// Tests SiteForecast, which predicts the numbers of sites of a batch from earlier batches, and SiteForecasts, which
// keeps one for each program.

#include "engine/executor/site_forecast.h"

#include <optional>
#include <utility>
#include <vector>

#include "engine/base/unique_id.h"
#include "engine/compiler/program.h"
#include "gtest/gtest.h"

namespace voxserve::site_forecast_test {
namespace {

TEST(SiteForecastTest, HasRoomForTheSameBatchAgainAndALittleMore) {
  SiteForecast forecast;
  EXPECT_FALSE(forecast.has_learned(100'000));
  const std::vector<int64_t> sites = {80'000, 40'000, 7, 0};
  forecast.Learn(100'000, sites, {3000});
  ASSERT_TRUE(forecast.has_learned(100'000));
  EXPECT_DOUBLE_EQ(forecast.MostVoxels(110'000), 88'000);
  const std::vector<int64_t> capacities = forecast.CapacitiesFor(100'000).sites;
  ASSERT_EQ(capacities.size(), sites.size());
  for (size_t level = 0; level < sites.size(); ++level) {
    const auto expected = static_cast<double>(sites[level]);
    EXPECT_GE(static_cast<double>(capacities[level]), 1.125 * expected) << level;
    EXPECT_LE(static_cast<double>(capacities[level]), 1.25 * expected + 64) << level;
  }
}

TEST(SiteForecastTest, FollowsMoreSitesAtOnceAndFewerSlowly) {
  SiteForecast forecast;
  forecast.Learn(1000, {100}, {});
  forecast.Learn(1000, {900}, {});
  EXPECT_DOUBLE_EQ(forecast.MostVoxels(1000), 900);
  forecast.Learn(1000, {100}, {});
  EXPECT_GT(forecast.MostVoxels(1000), 800);
  EXPECT_LT(forecast.MostVoxels(1000), 900);
  for (int batch = 0; batch < 200; ++batch) forecast.Learn(1000, {100}, {});
  EXPECT_NEAR(forecast.MostVoxels(1000), 100, 1);
}

// Level 2 is behind a prune, which may keep few sites of many scans and many of the next.
TEST(SiteForecastTest, RemembersTheMostSitesBehindAPruneForLong) {
  SiteForecast forecast;
  const auto learn_few = [&](int num_batches) {
    for (int batch = 0; batch < num_batches; ++batch) forecast.Learn(100'000, {80'000, 1'000, 1'000}, {}, {2});
    return forecast.CapacitiesFor(100'000).sites;
  };
  forecast.Learn(100'000, {80'000, 40'000, 40'000}, {}, /*behind_prunes=*/{2});
  const std::vector<int64_t> later = learn_few(100);
  EXPECT_GE(later[0], 90'000);
  EXPECT_LT(later[1], 2'500);
  EXPECT_GE(later[2], 40'000);
  EXPECT_LT(learn_few(10'000)[2], 2'500) << "but not for ever: what no batch needs any more is given back";
  forecast.Learn(100'000, {80'000, 1'000, 60'000}, {}, {2});
  EXPECT_GE(forecast.CapacitiesFor(100'000).sites[2], 67'500);
}

TEST(SiteForecastTest, LearnsTheLevelsThatAreKnown) {
  SiteForecast forecast;
  forecast.Learn(1000, {800, 300}, {}, {1});
  const std::vector<int64_t> first = forecast.CapacitiesFor(1000).sites;
  forecast.Learn(1000, {1600, SiteForecast::kUnknown}, {}, {1});
  EXPECT_GT(forecast.CapacitiesFor(1000).sites[0], first[0]);
  EXPECT_EQ(forecast.CapacitiesFor(1000).sites[1], first[1]);
}

TEST(SiteForecastTest, BatchesOfAKindHaveTheSameCapacities) {
  SiteForecast forecast;
  forecast.Learn(100'000, {80'000, 5'000}, {});
  EXPECT_EQ(forecast.CapacitiesFor(100'000).sites, forecast.CapacitiesFor(100'100).sites);
  EXPECT_NE(forecast.CapacitiesFor(100'000).sites, forecast.CapacitiesFor(120'000).sites);
}

// Returns the bits of an axis after one batch.
int32_t BitsAfter(int32_t max_coordinate) {
  SiteForecast forecast;
  forecast.Learn(1000, {100}, {max_coordinate});
  return forecast.CapacitiesFor(1000).axis_bits[0];
}

TEST(SiteForecastTest, CoordinatesGetTheBitsThatTheyHadAndALittleMore) {
  SiteForecast forecast;
  const auto axis_bits = [&](const kernels::Axes& max_coordinate) {
    forecast.Learn(1000, {100}, max_coordinate);
    return forecast.CapacitiesFor(1000).axis_bits;
  };
  EXPECT_EQ(axis_bits({}), (kernels::Axes{0, 0, 0, 0})) << "nothing is known of them";
  // 3000 and an eighth more needs 12 bits. A known axis without extent needs one. All but the widest get one more.
  EXPECT_EQ(axis_bits({3000, 500, 0}), (kernels::Axes{12, 11, 2, 2}));
  EXPECT_EQ(axis_bits({4000, 400, 1}), (kernels::Axes{13, 11, 3, 2}));
  EXPECT_EQ(axis_bits({1, 1, 0}), (kernels::Axes{13, 11, 3, 2}));
  // 454 and an eighth more is 511, which as nine set bits is no coordinate.
  EXPECT_EQ(BitsAfter(454), 10);
  EXPECT_EQ(BitsAfter(453), 9);
}

// Clouds of several sweeps have more points per voxel, and batches of four scans have four times as many points.
TEST(SiteForecastTest, BatchesOfOtherSizesAreLearnedApart) {
  SiteForecast forecast;
  forecast.Learn(70'000, {60'000}, {});
  EXPECT_TRUE(forecast.has_learned(131'071));
  EXPECT_FALSE(forecast.has_learned(131'072));
  EXPECT_FALSE(forecast.has_learned(65'535));
  EXPECT_FALSE(forecast.has_learned(0));
  forecast.Learn(280'000, {30'000}, {});
  EXPECT_DOUBLE_EQ(forecast.MostVoxels(70'000), 60'000);
  EXPECT_DOUBLE_EQ(forecast.MostVoxels(280'000), 30'000);
}

TEST(SiteForecastTest, FollowsFewerVoxelsAtOnceAndMoreSlowly) {
  SiteForecast forecast;
  forecast.Learn(1000, {500}, {});
  EXPECT_DOUBLE_EQ(forecast.FewestVoxels(1000), 500);
  forecast.Learn(1000, {200}, {});
  EXPECT_DOUBLE_EQ(forecast.FewestVoxels(1000), 200);
  EXPECT_GT(forecast.MostVoxels(1000), 480);
  forecast.Learn(1000, {500}, {});
  EXPECT_GT(forecast.FewestVoxels(1000), 200);
  EXPECT_LT(forecast.FewestVoxels(1000), 230);
  for (int batch = 0; batch < 200; ++batch) forecast.Learn(1000, {500}, {});
  EXPECT_NEAR(forecast.FewestVoxels(1000), 500, 1);
}

TEST(SiteForecastTest, AnEmptyLevelHasSomeRoom) {
  SiteForecast forecast;
  forecast.Learn(1000, {100, 0}, {});
  EXPECT_GT(forecast.CapacitiesFor(1000).sites[1], 0);
}

TEST(SiteForecastTest, WhereMemoryHadNoneBatchesDoWithoutCapacitiesForAWhile) {
  SiteForecast forecast;
  forecast.Learn(1000, {100}, {});
  forecast.HadNoMemory(1000);
  EXPECT_FALSE(forecast.has_learned(1000));
  int num_batches = 0;
  for (; !forecast.has_learned(1000) && num_batches < 1000; ++num_batches) forecast.Learn(1000, {100}, {});
  EXPECT_GT(num_batches, 30);
  EXPECT_LT(num_batches, 300);
}

TEST(SiteForecastTest, ReachIsLearnedWhereSizesAreNotKnown) {
  SiteForecast forecast;
  forecast.Learn(1000, {100}, {3000, 3000});
  forecast.Learn(1000, {}, {9000, 20});
  EXPECT_EQ(forecast.CapacitiesFor(1000).axis_bits, (kernels::Axes{14, 13, 2, 2}));
  EXPECT_DOUBLE_EQ(forecast.MostVoxels(1000), 100);
}

TEST(SiteForecastTest, AnotherNumberOfLevelsIsLearnedAnew) {
  SiteForecast forecast;
  forecast.Learn(1000, {100, 50}, {});
  forecast.Learn(1000, {100, 50, 25}, {});
  EXPECT_EQ(forecast.CapacitiesFor(1000).sites.size(), 3u);
}

TEST(SiteForecastsTest, AProgramAtTheAddressOfAFreedOneLearnsForItself) {
  SiteForecasts forecasts;
  std::optional<Program> program;
  const UniqueId freed = program.emplace().id;
  const void* const address = &*program;
  forecasts.Of(freed).Learn(1000, {900}, {});
  ASSERT_NE(forecasts.Find(freed), nullptr);
  EXPECT_TRUE(forecasts.Find(freed)->has_learned(1000));
  program.emplace();
  ASSERT_EQ(static_cast<const void*>(&*program), address);
  EXPECT_EQ(forecasts.Find(program->id), nullptr);
  EXPECT_FALSE(forecasts.Of(program->id).has_learned(1000));
}

TEST(SiteForecastsTest, AMovedProgramKeepsItsForecast) {
  SiteForecasts forecasts;
  Program program;
  forecasts.Of(program.id).Learn(1000, {900}, {});
  const Program moved = std::move(program);
  EXPECT_TRUE(forecasts.Of(moved.id).has_learned(1000));
}

TEST(SiteForecastsTest, KeepsThoseOfABoundedNumberOfPrograms) {
  SiteForecasts forecasts;
  std::vector<UniqueId> programs(SiteForecasts::kMostPrograms);
  for (const UniqueId program : programs) forecasts.Of(program).Learn(1000, {900}, {});
  for (const UniqueId program : programs) EXPECT_TRUE(forecasts.Of(program).has_learned(1000));
  const UniqueId one_more;
  EXPECT_FALSE(forecasts.Of(one_more).has_learned(1000));
  for (const UniqueId program : programs) EXPECT_EQ(forecasts.Find(program), nullptr);
}

}  // namespace
}  // namespace voxserve::site_forecast_test
