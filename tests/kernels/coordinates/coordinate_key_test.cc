// Tests CoordinateKey and CompactKey: their limits, packing, order and translation, in every dimension; and floor
// division.

#include "kernels/coordinates/coordinate_key.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/coordinates/compact_key.h"
#include "kernels/coordinates/floor_division.h"

namespace voxserve::kernels::coordinate_key_test {
namespace {

TEST(CoordinateKeyTest, FieldsFillTheWordBelowTheBatch) {
  EXPECT_EQ(CoordinateKey(1).axis_bits(), 32);
  EXPECT_EQ(CoordinateKey(2).axis_bits(), 27);
  EXPECT_EQ(CoordinateKey(3).axis_bits(), 18);
  EXPECT_EQ(CoordinateKey(4).axis_bits(), 13);
}

TEST(CoordinateKeyTest, LimitsKeepTheMargin) {
  EXPECT_EQ(CoordinateKey(3).max_coordinate(), (1 << 17) - 1 - kCoordinateMargin);
  EXPECT_EQ(CoordinateKey(3).min_coordinate(), -(1 << 17) + kCoordinateMargin);
  EXPECT_EQ(CoordinateKey(1).max_coordinate(), 2147483519);
  EXPECT_EQ(CoordinateKey(1).min_coordinate(), -2147483520);
}

TEST(AxisBitsTest, AllBitsSetAreNoCoordinate) {
  EXPECT_EQ(AxisBitsFor(0), 1);
  EXPECT_EQ(AxisBitsFor(1), 2);
  EXPECT_EQ(AxisBitsFor(510), 9);
  EXPECT_EQ(AxisBitsFor(511), 10);
  EXPECT_EQ(AxisBitsFor(CoordinateKey(1).max_coordinate()), 31);
  for (const int64_t most : {0, 1, 2, 6, 7, 510, 511, 512, CoordinateKey(3).max_coordinate()}) {
    SCOPED_TRACE(most);
    EXPECT_TRUE(FitsAxisBits(most, AxisBitsFor(most)));
    EXPECT_FALSE(FitsAxisBits(most, AxisBitsFor(most) - 1));
  }
}

class CoordinateKeyByDimension : public ::testing::TestWithParam<int32_t> {
 protected:
  const CoordinateKey layout_{GetParam()};

  // Returns all combinations of the smallest and largest coordinate, -1, 0 and 1 over the axes.
  std::vector<Axes> Edges() const {
    const std::vector<int32_t> values = {layout_.min_coordinate(), -1, 0, 1, layout_.max_coordinate()};
    std::vector<Axes> edges = {{0, 0, 0, 0}};
    for (int axis = 0; axis < GetParam(); ++axis) {
      std::vector<Axes> next;
      for (Axes edge : edges) {
        for (const int32_t value : values) {
          edge[axis] = value;
          next.push_back(edge);
        }
      }
      edges = next;
    }
    return edges;
  }
};

TEST_P(CoordinateKeyByDimension, UnpackGivesBackWhatWasPacked) {
  for (const int32_t sample : {0, 1, kMaxSamples - 1}) {
    for (const Axes& edge : Edges()) {
      const uint64_t key = layout_.Pack(sample, edge);
      EXPECT_EQ(layout_.Sample(key), sample);
      EXPECT_EQ(layout_.Unpack(key), edge);
      EXPECT_LT(key, kNoKey);
      EXPECT_GE(key, layout_.SampleFloor(sample));
    }
  }
}

TEST_P(CoordinateKeyByDimension, KeysSortAsSampleThenCoordinate) {
  std::vector<std::tuple<int32_t, Axes, uint64_t>> all;
  for (const int32_t sample : {0, 1, kMaxSamples - 1}) {
    for (const Axes& edge : Edges()) all.emplace_back(sample, edge, layout_.Pack(sample, edge));
  }
  std::sort(all.begin(), all.end());
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(),
                             [](const auto& a, const auto& b) { return std::get<2>(a) < std::get<2>(b); }));
}

TEST_P(CoordinateKeyByDimension, TranslationIsOneAdditionUpToTheMargin) {
  for (const Axes& edge : Edges()) {
    for (const int32_t step : {-kCoordinateMargin, -1, 1, kCoordinateMargin}) {
      for (int axis = 0; axis < GetParam(); ++axis) {
        Axes offset = {0, 0, 0, 0};
        offset[axis] = step;
        Axes moved = edge;
        moved[axis] += step;
        const uint64_t key = layout_.Pack(kMaxSamples - 1, edge) + layout_.Translation(offset);
        EXPECT_EQ(layout_.Unpack(key), moved);
        EXPECT_EQ(layout_.Sample(key), kMaxSamples - 1);
        EXPECT_NE(key, kNoKey) << "would read as an empty slot";
      }
    }
  }
}

TEST_P(CoordinateKeyByDimension, CompactKeysKeepOrderAndCoordinates) {
  Axes min = {0, 0, 0, 0}, max = {0, 0, 0, 0};
  for (int axis = 0; axis < GetParam(); ++axis) {
    min[axis] = layout_.min_coordinate();
    max[axis] = layout_.max_coordinate();
  }
  const CompactKey compact(layout_, min, max, kMaxSamples);
  EXPECT_LE(compact.num_bits(), 64);
  std::vector<std::pair<uint64_t, uint64_t>> keys;
  for (const int32_t sample : {0, kMaxSamples - 1}) {
    for (const Axes& edge : Edges()) {
      uint64_t packed = compact.PackSample(sample);
      for (int axis = 0; axis < GetParam(); ++axis) packed |= compact.PackAxis(axis, edge[axis]);
      EXPECT_EQ(compact.Unpack(packed), layout_.Pack(sample, edge));
      keys.emplace_back(layout_.Pack(sample, edge), packed);
    }
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_TRUE(
      std::is_sorted(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
}

INSTANTIATE_TEST_SUITE_P(Dimensions, CoordinateKeyByDimension, ::testing::Values(1, 2, 3, 4));

TEST(FloorDivisionTest, RoundsTowardsMinusInfinityForEveryDivisor) {
  std::mt19937 random(1);
  std::vector<int32_t> values = {INT32_MIN, INT32_MIN + 1, -3, -2, -1, 0, 1, 2, 3, INT32_MAX - 1, INT32_MAX};
  for (int i = 0; i < 1000; ++i) values.push_back(static_cast<int32_t>(random()));
  for (const int32_t divisor : {1, 2, 3, 4, 5, 7, 8, 64, 127, 1000003, INT32_MAX - 1, INT32_MAX}) {
    const FloorDivision division(divisor);
    for (const int32_t value : values) {
      int64_t expected = int64_t{value} / divisor;
      if (int64_t{value} % divisor < 0) --expected;
      ASSERT_EQ(division.Quotient(value), expected) << value << " / " << divisor;
      ASSERT_EQ(FloorDivide<int32_t>(value, divisor), expected) << value << " / " << divisor;
      ASSERT_EQ(FloorDivide<int64_t>(value, divisor), expected) << value << " / " << divisor;
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::coordinate_key_test
