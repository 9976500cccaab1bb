// Compares the look-ups of the CPU's CoordinateTable, as a grid and as a hash table, with a std::map. Times coordinates
// that were chosen to collide.

#include "kernels/coordinates/coordinate_table.h"

#include <bit>
#include <ctime>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/chosen_keys.h"

namespace voxserve::kernels::coordinate_table_test {
namespace {

using support::KeysOfOneSlot;
using support::kKnownSeed;

std::vector<uint64_t> RandomKeys(int32_t dimension, int32_t num_samples, int32_t count, int32_t extent, uint32_t seed) {
  const CoordinateKey layout(dimension);
  std::mt19937 random(seed);
  std::set<uint64_t> keys;
  for (int32_t i = 0; i < count; ++i) {
    Axes coordinate = {0, 0, 0, 0};
    for (int axis = 0; axis < dimension; ++axis) {
      coordinate[axis] = static_cast<int32_t>(random() % static_cast<uint32_t>(extent)) - extent / 2;
    }
    // Sample 1 stays empty, so that the tables must cope with a sample without sites.
    const auto sample = static_cast<int32_t>(random() % static_cast<uint32_t>(num_samples));
    keys.insert(layout.Pack(sample == 1 ? 0 : sample, coordinate));
  }
  return {keys.begin(), keys.end()};
}

struct Case {
  MapSearch search;
  int32_t dimension;
};

class CoordinateTableTest : public ::testing::TestWithParam<Case> {
 protected:
  MapSearch Build(const std::vector<uint64_t>& keys, int64_t max_grid_bytes = int64_t{64} << 20) {
    return table_.Build({.dimension = GetParam().dimension,
                         .search = GetParam().search,
                         .max_grid_bytes = max_grid_bytes,
                         .keys = keys.data(),
                         .num_keys = static_cast<int64_t>(keys.size())},
                        pool_);
  }

  // Looks up every key and every neighbour of a key, and compares the rows with those in a std::map.
  void ExpectFinds(const std::vector<uint64_t>& keys) {
    const CoordinateKey layout(GetParam().dimension);
    std::map<uint64_t, int32_t> rows;
    for (const uint64_t key : keys) rows.emplace(key, static_cast<int32_t>(rows.size()));
    for (const uint64_t key : keys) {
      ASSERT_EQ(table_.Find(key), rows.at(key));
      for (int axis = 0; axis < GetParam().dimension; ++axis) {
        for (const int32_t step : {-kCoordinateMargin, -1, 1, kCoordinateMargin}) {
          Axes offset = {0, 0, 0, 0};
          offset[axis] = step;
          const uint64_t wanted = key + layout.Translation(offset);
          const auto found = rows.find(wanted);
          ASSERT_EQ(table_.Find(wanted), found == rows.end() ? -1 : found->second);
        }
      }
    }
  }

  ThreadPool pool_{3};
  cpu::CoordinateTable table_;
};

TEST_P(CoordinateTableTest, FindsEveryKeyAndNoOther) {
  const auto keys = RandomKeys(GetParam().dimension, 4, 20000, GetParam().dimension == 1 ? 60000 : 22, 3);
  EXPECT_EQ(Build(keys), GetParam().search);
  ExpectFinds(keys);
}

TEST_P(CoordinateTableTest, ForgetsWhatItHeldBefore) {
  Build(RandomKeys(GetParam().dimension, 3, 5000, 20, 1));
  const auto keys = RandomKeys(GetParam().dimension, 1, 300, 10, 2);
  Build(keys);
  ExpectFinds(keys);
  const auto more = RandomKeys(GetParam().dimension, 5, 8000, 26, 4);
  Build(more);
  ExpectFinds(more);
}

TEST_P(CoordinateTableTest, AnEmptyTableFindsNothing) {
  const CoordinateKey layout(GetParam().dimension);
  EXPECT_EQ(table_.Find(layout.Pack(0, {0, 0, 0, 0})), -1) << "never built";
  EXPECT_EQ(Build({}), GetParam().search);
  EXPECT_EQ(table_.Find(layout.Pack(0, {0, 0, 0, 0})), -1);
  Build({layout.Pack(2, {-5, 0, 0, 0})});
  EXPECT_EQ(table_.Find(layout.Pack(2, {-5, 0, 0, 0})), 0);
  EXPECT_EQ(table_.Find(layout.Pack(0, {-5, 0, 0, 0})), -1);
  EXPECT_EQ(table_.Find(layout.Pack(3, {-5, 0, 0, 0})), -1);
  Build({});
  EXPECT_EQ(table_.Find(layout.Pack(2, {-5, 0, 0, 0})), -1);
}

INSTANTIATE_TEST_SUITE_P(All, CoordinateTableTest,
                         ::testing::Values(Case{MapSearch::kGrid, 1}, Case{MapSearch::kGrid, 2},
                                           Case{MapSearch::kGrid, 3}, Case{MapSearch::kGrid, 4},
                                           Case{MapSearch::kHash, 1}, Case{MapSearch::kHash, 2},
                                           Case{MapSearch::kHash, 3}, Case{MapSearch::kHash, 4}),
                         [](const auto& test) {
                           return (test.param.search == MapSearch::kGrid ? "Grid" : "Hash") +
                                  std::to_string(test.param.dimension);
                         });

TEST(CoordinateTableFallbackTest, AGridThatDoesNotFitBecomesAHash) {
  const CoordinateKey layout(3);
  ThreadPool pool(1);
  cpu::CoordinateTable table;
  // The bounding boxes of the two samples have 10 x 10 x 10 cells each, of 4 bytes.
  const std::vector<uint64_t> keys = {layout.Pack(0, {0, 0, 0, 0}), layout.Pack(0, {9, 9, 9, 0}),
                                      layout.Pack(1, {-9, 0, 0, 0}), layout.Pack(1, {0, 9, 9, 0})};
  CoordinateTableParams params{
      .dimension = 3, .search = MapSearch::kGrid, .max_grid_bytes = 2000 * 4, .keys = keys.data(), .num_keys = 4};
  EXPECT_EQ(table.Build(params, pool), MapSearch::kGrid);
  params.max_grid_bytes = 2000 * 4 - 1;
  EXPECT_EQ(table.Build(params, pool), MapSearch::kHash);
  for (size_t row = 0; row < keys.size(); ++row) EXPECT_EQ(table.Find(keys[row]), static_cast<int32_t>(row));
  EXPECT_EQ(table.Find(layout.Pack(0, {0, 0, 1, 0})), -1);
}

TEST(CoordinateTableFallbackTest, AHugeBoxDoesNotOverflow) {
  const CoordinateKey layout(3);
  ThreadPool pool(1);
  cpu::CoordinateTable table;
  const int32_t low = layout.min_coordinate(), high = layout.max_coordinate();
  const std::vector<uint64_t> keys = {layout.Pack(0, {low, low, low, 0}), layout.Pack(0, {high, high, high, 0})};
  EXPECT_EQ(table.Build({.dimension = 3, .search = MapSearch::kGrid, .keys = keys.data(), .num_keys = 2}, pool),
            MapSearch::kHash);
  EXPECT_EQ(table.Find(keys[1]), 1);
}

TEST(HashSeedTest, KeysAreChosenToCollide) {
  const std::vector<uint64_t> keys = KeysOfOneSlot(kKnownSeed, 1000, 18);
  for (const uint64_t key : keys) ASSERT_EQ(kKnownSeed.Hash(key) >> (64 - 18), 0u);
  std::set<uint64_t> slots;
  for (const uint64_t key : keys) slots.insert(HashSeed::OfProcess().Hash(key) >> (64 - 18));
  EXPECT_GT(slots.size(), 900u) << "the seed of the process is another";
}

// With the seed for which the keys are chosen, an AMD EPYC took 2.4 s to build the table, and as long to look up all
// keys. The limit is one of the processor's time, which a busy machine does not use up.
TEST(HashSeedTest, ChosenCoordinatesAreBuiltAndFoundInTime) {
  constexpr size_t kKeys = 100'000;
  const std::vector<uint64_t> keys = KeysOfOneSlot(kKnownSeed, kKeys, std::bit_width(2 * kKeys - 1));
  ThreadPool pool(1);
  cpu::CoordinateTable table;
  const std::clock_t start = std::clock();
  table.Build({.dimension = 3, .keys = keys.data(), .num_keys = kKeys}, pool);
  for (size_t row = 0; row < kKeys; ++row) ASSERT_EQ(table.Find(keys[row]), static_cast<int32_t>(row));
  EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC) << "the limit is far above the few milliseconds that it takes";
}

TEST(HashSeedTest, TheSeedChangesNoAnswer) {
  const CoordinateKey layout(3);
  const auto keys = RandomKeys(3, 3, 5000, 22, 7);
  ThreadPool pool(1);
  cpu::CoordinateTable known, own;
  known.Build({.keys = keys.data(), .num_keys = static_cast<int64_t>(keys.size()), .seed = kKnownSeed}, pool);
  own.Build({.keys = keys.data(), .num_keys = static_cast<int64_t>(keys.size())}, pool);
  for (const uint64_t key : keys) {
    for (int32_t step = -2; step <= 2; ++step) {
      const uint64_t wanted = key + layout.Translation({0, 0, step, 0});
      ASSERT_EQ(known.Find(wanted), own.Find(wanted));
    }
  }
}

TEST(HashSeedTest, AProcessHasOneSeedOfOddMultipliers) {
  const HashSeed seed = HashSeed::OfProcess(), again = HashSeed::OfProcess();
  EXPECT_EQ(seed.first, again.first);
  EXPECT_EQ(seed.second, again.second);
  EXPECT_EQ(seed.first & seed.second & 1, 1u);
  EXPECT_NE(seed.first, seed.second);
}

}  // namespace
}  // namespace voxserve::kernels::coordinate_table_test
