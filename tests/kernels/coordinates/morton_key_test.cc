// Compares MortonKeys with keys that are interleaved bit by bit, in every dimension. Tests their order and translation,
// and the places of a box's cells (morton_places.h).

#include "kernels/coordinates/morton_key.h"

#include <algorithm>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/coordinates/morton_places.h"

namespace voxserve::kernels::morton_key_test {
namespace {

template <typename DimensionType>
class MortonKeyTest : public ::testing::Test {
 protected:
  static constexpr int kDimension = DimensionType::value;
  using KeyType = MortonKey<kDimension>;

  // Returns all combinations of the limits, -1, 0 and 1 over the axes, and random coordinates.
  static std::vector<Axes> Coordinates() {
    const CoordinateKey layout(kDimension);
    std::vector<Axes> all = {{0, 0, 0, 0}};
    for (int axis = 0; axis < kDimension; ++axis) {
      std::vector<Axes> next;
      for (Axes coordinate : all) {
        for (const int32_t value : {layout.min_coordinate(), -1, 0, 1, layout.max_coordinate()}) {
          coordinate[static_cast<size_t>(axis)] = value;
          next.push_back(coordinate);
        }
      }
      all = next;
    }
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> anywhere(layout.min_coordinate(), layout.max_coordinate());
    for (int i = 0; i < 500; ++i) {
      Axes coordinate = {0, 0, 0, 0};
      for (size_t axis = 0; axis < kDimension; ++axis) coordinate[axis] = anywhere(random);
      all.push_back(coordinate);
    }
    return all;
  }

  // Packs a key bit by bit, as morton_key.h describes it.
  static uint64_t NaivePack(int32_t sample, const Axes& coordinate) {
    auto key = static_cast<uint64_t>(sample);
    for (int bit = KeyType::kAxisBits - 1; bit >= 0; --bit) {
      for (size_t axis = 0; axis < kDimension; ++axis) {
        const int64_t field = int64_t{coordinate[axis]} + (int64_t{1} << (KeyType::kAxisBits - 1));
        key = key << 1 | static_cast<uint64_t>(field >> bit & 1);
      }
    }
    return key;
  }
};

template <int kDimension>
using Dimension = std::integral_constant<int, kDimension>;
using Dimensions = ::testing::Types<Dimension<1>, Dimension<2>, Dimension<3>, Dimension<4>>;
TYPED_TEST_SUITE(MortonKeyTest, Dimensions);

TYPED_TEST(MortonKeyTest, IsMadeOfACoordinateKey) {
  using Key = typename TestFixture::KeyType;
  const CoordinateKey layout(TestFixture::kDimension);
  for (const Axes& coordinate : TestFixture::Coordinates()) {
    EXPECT_EQ(ToMortonKey(layout, layout.Pack(7, coordinate)), Key::Pack(7, coordinate));
  }
}

TYPED_TEST(MortonKeyTest, InterleavesTheFieldsOfCoordinateKeys) {
  using Key = typename TestFixture::KeyType;
  const CoordinateKey layout(TestFixture::kDimension);
  EXPECT_EQ(Key::kAxisBits, layout.axis_bits());
  EXPECT_EQ(Key::kBatchShift, layout.batch_shift());
  EXPECT_EQ(Key::kBias, layout.bias());
  for (const int32_t sample : {0, 5, kMaxSamples - 1}) {
    for (const Axes& coordinate : this->Coordinates()) {
      ASSERT_EQ(Key::Pack(sample, coordinate), this->NaivePack(sample, coordinate));
    }
  }
}

TYPED_TEST(MortonKeyTest, UnpackGivesBackWhatWasPacked) {
  using Key = typename TestFixture::KeyType;
  for (const int32_t sample : {0, 5, kMaxSamples - 1}) {
    for (const Axes& coordinate : this->Coordinates()) {
      const uint64_t key = Key::Pack(sample, coordinate);
      ASSERT_EQ(Key::Sample(key), sample);
      ASSERT_EQ(Key::Unpack(key), coordinate);
      for (int axis = 0; axis < TestFixture::kDimension; ++axis) {
        ASSERT_EQ(Key::Coordinate(key, axis), coordinate[static_cast<size_t>(axis)]);
      }
      ASSERT_LT(key, kNoKey);
    }
  }
}

TYPED_TEST(MortonKeyTest, SamplesAscend) {
  using Key = typename TestFixture::KeyType;
  for (const int32_t sample : {0, 5, kMaxSamples - 2}) {
    for (const Axes& coordinate : this->Coordinates()) {
      ASSERT_GE(Key::Pack(sample, coordinate), Key::SampleFloor(sample));
      ASSERT_LT(Key::Pack(sample, coordinate), Key::SampleFloor(sample + 1));
    }
  }
}

TYPED_TEST(MortonKeyTest, TranslationMovesEveryAxisUpToTheMargin) {
  using Key = typename TestFixture::KeyType;
  std::mt19937 random(2);
  std::uniform_int_distribution<int32_t> step(-kCoordinateMargin, kCoordinateMargin);
  for (const Axes& coordinate : this->Coordinates()) {
    std::vector<Axes> offsets = {{0, 0, 0, 0}};
    for (size_t axis = 0; axis < TestFixture::kDimension; ++axis) {
      for (const int32_t one : {-kCoordinateMargin, -1, 1, kCoordinateMargin}) {
        offsets.push_back({0, 0, 0, 0});
        offsets.back()[axis] = one;
      }
    }
    offsets.push_back({0, 0, 0, 0});
    for (size_t axis = 0; axis < TestFixture::kDimension; ++axis) offsets.back()[axis] = step(random);
    for (const Axes& offset : offsets) {
      Axes moved = coordinate;
      for (size_t axis = 0; axis < TestFixture::kDimension; ++axis) moved[axis] += offset[axis];
      ASSERT_EQ(Key::Translate(Key::Pack(7, coordinate), Key::Translation(offset)), Key::Pack(7, moved));
    }
  }
}

TYPED_TEST(MortonKeyTest, HalvingKeepsTheOrder) {
  using Key = typename TestFixture::KeyType;
  std::vector<uint64_t> keys;
  for (const Axes& coordinate : this->Coordinates()) keys.push_back(Key::Pack(3, coordinate));
  std::sort(keys.begin(), keys.end());
  for (uint64_t& key : keys) {
    Axes half = Key::Unpack(key);
    for (int32_t& c : half) c >>= 1;  // towards minus infinity
    key = Key::Pack(3, half);
  }
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
}

// The shapes include flat ones, and ones that are too large for a place or a key.
TYPED_TEST(MortonKeyTest, PlacesOfABoxAreInTheOrderOfItsKeys) {
  constexpr int kAxes = TestFixture::kDimension;
  using Key = typename TestFixture::KeyType;
  for (const Axes& shape :
       {Axes{1, 1, 1, 1}, Axes{2, 1, 3, 1}, Axes{1, 9, 4, 2}, Axes{7, 1, 1, 5}, Axes{5, 8, 3, 4}, Axes{33, 2, 6, 1}}) {
    const MortonPlaces places(kAxes, shape);
    ASSERT_TRUE(places.is_valid());
    std::vector<std::pair<uint64_t, uint64_t>> cells;  // key, place
    Axes cell = {0, 0, 0, 0};
    for (bool is_done = false; !is_done;) {
      for (const int32_t sample : {0, 1, 6, kMaxSamples - 1}) {
        uint64_t place = places.OfSample(sample);
        for (int axis = 0; axis < kAxes; ++axis) place |= places.OnAxis(axis, cell[static_cast<size_t>(axis)]);
        cells.emplace_back(Key::Pack(sample, cell), place);
        ASSERT_EQ(places.Key(place), cells.back().first);
        const uint64_t in_box = places.OfTranslation(Key::Translation(cell));
        ASSERT_EQ(places.OfSample(sample) | in_box, place);
        for (int axis = 0; axis < kAxes; ++axis) {
          ASSERT_EQ(places.BitsOnAxis(axis, place), places.OnAxis(axis, cell[static_cast<size_t>(axis)]));
        }
        ASSERT_EQ(place >> places.sample_bits(), static_cast<uint64_t>(sample));
      }
      is_done = true;
      for (size_t axis = 0; axis < kAxes && is_done; ++axis) {
        is_done = ++cell[axis] == shape[axis];
        if (is_done) cell[axis] = 0;
      }
    }
    std::sort(cells.begin(), cells.end());
    ASSERT_TRUE(
        std::is_sorted(cells.begin(), cells.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
    ASSERT_TRUE(std::adjacent_find(cells.begin(), cells.end(),
                                   [](const auto& a, const auto& b) { return a.second == b.second; }) == cells.end());
  }
}

TYPED_TEST(MortonKeyTest, PlacesAreAddedUpOnEveryAxis) {
  constexpr int kAxes = TestFixture::kDimension;
  const MortonPlaces places(kAxes, {33, 6, 1, 700});
  for (int axis = 0; axis < kAxes; ++axis) {
    for (int64_t first = -70; first < 70; ++first) {
      for (const int64_t step : {-300, -2, -1, 0, 1, 2, 5, 300}) {
        uint64_t place = places.OnAxis(axis, first);
        Axes coordinates = {0, 0, 0, 0};
        coordinates[static_cast<size_t>(axis)] = static_cast<int32_t>(first);
        ASSERT_EQ(places.OfTranslation(TestFixture::KeyType::Translation(coordinates)), place) << first;
        for (int64_t number = 0; number < 4; ++number) {
          ASSERT_EQ(place, places.OnAxis(axis, first + number * step)) << first << " " << step << " " << number;
          place = places.AddOnAxis(axis, place, places.OnAxis(axis, step));
        }
      }
    }
  }
}

TYPED_TEST(MortonKeyTest, ShapesWithoutRoomHaveNoPlaces) {
  constexpr int kAxes = TestFixture::kDimension;
  const int32_t most = CoordinateKey(kAxes).max_coordinate();
  Axes shape = {1, 1, 1, 1};
  shape[kAxes - 1] = most + 1;
  EXPECT_TRUE(MortonPlaces(kAxes, shape).is_valid());
  if (most < std::numeric_limits<int32_t>::max() - 1) {
    shape[kAxes - 1] = most + 2;
    EXPECT_FALSE(MortonPlaces(kAxes, shape).is_valid());
  }
  shape[kAxes - 1] = 0;
  EXPECT_FALSE(MortonPlaces(kAxes, shape).is_valid());
  const Axes largest = {most, most, most, most};
  EXPECT_EQ(MortonPlaces(kAxes, largest).is_valid(), kAxes == 1);
  EXPECT_FALSE(MortonPlaces().is_valid());
}

}  // namespace
}  // namespace voxserve::kernels::morton_key_test
