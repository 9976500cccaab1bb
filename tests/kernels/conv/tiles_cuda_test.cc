// Compares the tiles that the GPU makes from a rulebook with the tiles that a simple host function makes
// (tiles_testing.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/conv/tiles.h"
#include "kernels/coordinates/neighbour_search.h"
#include "tests/kernels/conv/tiles_testing.h"

namespace voxserve::kernels::tiles_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

// Returns a SortOrder whose first bits are these offsets. Its other bits are 0.
SortOrder Order(const std::vector<int>& offsets) {
  SortOrder order{};
  std::transform(offsets.begin(), offsets.end(), order.begin(), [](int k) { return static_cast<int8_t>(k); });
  return order;
}

TEST(OffsetsByDistanceTest, CubeFromTheCentreToTheCorners) {
  EXPECT_EQ(OffsetsByDistance({.kernel_size = {3, 3, 3, 1}}),
            Order({13,                                              //
                   4,  10, 12, 14, 16, 22,                          //
                   1,  3,  5,  7,  9,  11, 15, 17, 19, 21, 23, 25,  //
                   0,  2,  6,  8,  18, 20, 24, 26}));
}

TEST(OffsetsByDistanceTest, EvenCubeHasNoCentre) {
  EXPECT_EQ(OffsetsByDistance({.kernel_size = {2, 2, 2, 1}}), Order({0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(OffsetsByDistanceTest, FlatAndLongKernels) {
  EXPECT_EQ(OffsetsByDistance({.dimension = 2, .kernel_size = {3, 3, 1, 1}}), Order({4, 1, 3, 5, 7, 0, 2, 6, 8}));
  EXPECT_EQ(OffsetsByDistance({}), Order({0}));
  EXPECT_EQ(OffsetsByDistance({.kernel_size = {1, 1, 5, 1}}), Order({2, 1, 3, 0, 4}));
  EXPECT_EQ(OffsetsByDistance({.kernel_size = {1, 4, 1, 1}}), Order({1, 2, 0, 3}));
  std::vector<int> longest = {13};
  for (int distance = 1; distance <= 13; ++distance) {
    longest.push_back(13 - distance);
    longest.push_back(13 + distance);
  }
  EXPECT_EQ(OffsetsByDistance({.kernel_size = {1, 1, 27, 1}}), Order(longest));
}

TEST(OffsetsByDistanceTest, DilationAndPaddingChangeNothing) {
  const ConvGeometry geometry{.dimension = 2, .kernel_size = {3, 3, 1, 1}, .dilation = {2, 3, 1, 1}, .padding = {0, 5}};
  EXPECT_EQ(OffsetsByDistance(geometry), Order({4, 1, 3, 5, 7, 0, 2, 6, 8}));
}

ConvGeometry Listed(const Axes& kernel_size, const std::vector<int32_t>& cells) {
  ConvGeometry geometry{.kernel_size = kernel_size, .num_listed_cells = static_cast<int32_t>(cells.size())};
  std::copy(cells.begin(), cells.end(), geometry.listed_cells.begin());
  return geometry;
}

// For a kernel of listed cells, an offset is a cell's index in the list, not in the bounding box.
TEST(OffsetsByDistanceTest, Crosses) {
  EXPECT_EQ(OffsetsByDistance(Listed({3, 3, 3, 1}, {4, 10, 12, 13, 14, 16, 22})), Order({3, 0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(OffsetsByDistance(Listed({5, 5, 5, 1}, {12, 37, 52, 57, 60, 61, 62, 63, 64, 67, 72, 87, 112})),
            Order({6, 1, 3, 5, 7, 9, 11, 0, 2, 4, 8, 10, 12}));
}

TEST(OffsetsByDistanceTest, LargeKernelsAreLeftOut) {
  EXPECT_EQ(OffsetsByDistance({.kernel_size = {1, 1, 28, 1}}), SortOrder{});
  EXPECT_EQ(OffsetsByDistance({.kernel_size = {5, 5, 5, 1}}), SortOrder{});
  EXPECT_EQ(OffsetsByDistance({.dimension = 4, .kernel_size = {3, 3, 3, 3}}), SortOrder{});
  std::vector<int32_t> cells(28);
  std::iota(cells.begin(), cells.end(), 40);
  EXPECT_EQ(OffsetsByDistance(Listed({5, 5, 5, 1}, cells)), SortOrder{});
}

TEST(NumTilePlacesTest, WholeBlocks) {
  EXPECT_EQ(NumTilePlaces(0), 0);
  EXPECT_EQ(NumTilePlaces(1), kMaxBlockTileRows);
  EXPECT_EQ(NumTilePlaces(kMaxBlockTileRows), kMaxBlockTileRows);
  EXPECT_EQ(NumTilePlaces(kMaxBlockTileRows + 1), 2 * kMaxBlockTileRows);
}

// The place of a mask must not descend with its Gray rank, so that shortened ranks keep the order of whole ones.
TEST(PlaceOfMaskTest, AscendsWithTheGrayRank) {
  for (int num_bits = 0; num_bits <= 14; ++num_bits) {
    uint32_t last = 0;
    for (uint32_t rank = 0; rank < 1u << num_bits; ++rank) {
      const uint32_t place = PlaceOfMask(rank ^ rank >> 1, num_bits);
      ASSERT_GE(place, last) << num_bits << " bits, rank " << rank;
      ASSERT_LT(place, kPlaceOne);
      last = place;
    }
  }
  Random random(53);
  for (int i = 0; i < 100'000; ++i) {
    const auto mask = [&] { return static_cast<uint32_t>(random.engine()()) % (1u << 26); };
    uint32_t low = mask(), high = mask();
    if (GrayRank(low) > GrayRank(high)) std::swap(low, high);
    ASSERT_LE(PlaceOfMask(low, 26), PlaceOfMask(high, 26)) << low << " " << high;
    ASSERT_LT(PlaceOfMask(high, 26), kPlaceOne);
  }
}

// The number of values behind an output that the kernel must not change.
constexpr size_t kGuard = 64;

// Owns a rulebook on the GPU and the memory of its tiles.
struct TilesCase {
  NeighbourTable table;
  int64_t capacity;
  SortOrder order;
  bool keeps_order = false;
  DeviceArray<int32_t> neighbours, row_inputs, out_rows, in_rows, counters;
  DeviceArray<WeighedTile> by_weight;
  DeviceArray<uint32_t> masks, row_masks;
  DeviceArray<int64_t> num_out;

  // `count` is the number of rows in device memory; -1: that of the table.
  TilesCase(NeighbourTable made, int64_t rows_at_most, const SortOrder& by, int64_t count = -1)
      : table(std::move(made)),
        capacity(rows_at_most),
        order(by),
        neighbours(Device::kCuda, table.in_rows),
        row_inputs(Device::kCuda, RowInputs()),
        out_rows(Device::kCuda, static_cast<size_t>(NumTilePlaces(capacity)) + kGuard),
        in_rows(Device::kCuda, static_cast<size_t>(NumTilePlaces(capacity) * table.num_offsets) + kGuard),
        counters(Device::kCuda, static_cast<size_t>(NumTileCounters(capacity)) + kGuard),
        by_weight(Device::kCuda, static_cast<size_t>(NumTilesByWeight(capacity)) + kGuard),
        masks(Device::kCuda,
              static_cast<size_t>(NumTilePlaces(capacity) / kMaskTileRows * MaskWords(table.num_offsets)) + kGuard),
        row_masks(Device::kCuda, RowMasks()),
        num_out(Device::kCuda, std::vector<int64_t>{count < 0 ? table.num_rows : count}) {}

  TilesParams Params() const {
    return {.num_offsets = table.num_offsets,
            .keeps_order = keeps_order,
            .neighbours = HasRowInputs() ? nullptr : neighbours.data(),
            .pitch = table.pitch,
            .row_masks = HasRowMasks() ? row_masks.data() : nullptr,
            .row_inputs = HasRowInputs() ? row_inputs.data() : nullptr,
            .row_inputs_pitch = InputsPitch(),
            .out_capacity = capacity,
            .num_out = num_out.data(),
            .order = order,
            .out_rows = out_rows.data(),
            .masks = masks.data(),
            .in_rows = in_rows.data(),
            .counters = counters.data(),
            .by_weight = by_weight.data()};
  }

  // Every second case has row_masks. Half of these have lists of inputs in place of neighbours.
  bool HasRowMasks() const { return table.num_offsets <= kSortBits && table.num_rows % 2 == 0; }
  bool HasRowInputs() const { return HasRowMasks() && table.num_rows % 4 == 0; }
  // Returns the number of inputs of the row that has most; at least 1.
  int64_t InputsPitch() const {
    int64_t pitch = 1;
    for (int64_t row = 0; row < table.num_rows; ++row) {
      int64_t count = 0;
      for (int32_t k = 0; k < table.num_offsets; ++k) count += table.at(k, row) >= 0;
      pitch = std::max(pitch, count);
    }
    return pitch;
  }
  std::vector<int32_t> RowInputs() const {
    const auto pitch = static_cast<size_t>(InputsPitch());
    std::vector<int32_t> inputs(pitch * static_cast<size_t>(capacity), -7);
    for (int64_t row = 0; HasRowInputs() && row < table.num_rows; ++row) {
      auto next = inputs.begin() + static_cast<int64_t>(pitch) * row;
      for (int32_t k = 0; k < table.num_offsets; ++k) {
        const int32_t in_row = table.at(k, row);
        if (in_row >= 0) *next++ = in_row;
      }
    }
    return inputs;
  }
  std::vector<uint32_t> RowMasks() const {
    std::vector<uint32_t> offsets(static_cast<size_t>(capacity), ~0u);
    for (int64_t row = 0; HasRowMasks() && row < table.num_rows; ++row) {
      offsets[static_cast<size_t>(row)] = 0;
      for (int32_t k = 0; k < table.num_offsets; ++k) {
        offsets[static_cast<size_t>(row)] |= static_cast<uint32_t>(table.at(k, row) >= 0) << k;
      }
    }
    return offsets;
  }
};
using TilesCases = std::vector<std::unique_ptr<TilesCase>>;

// Expects that the last values, behind the output, are unchanged.
template <typename T>
void ExpectGuard(const std::vector<T>& made, size_t num_values = kGuard) {
  for (size_t i = made.size() - num_values; i < made.size(); ++i) {
    ASSERT_EQ(static_cast<uint32_t>(made[i]), 0xCDCDCDCDu) << i << " of " << made.size();
  }
}

// Expects that the list of tiles names every tile with rows exactly once, from the heaviest (most offsets) to the
// lightest, with its masks.
void ExpectTilesByWeight(const TilesCase& c, const HostTiles& tiles) {
  const std::vector<WeighedTile> made = c.by_weight.ToHost();
  std::vector<uint32_t> guarded(made.size() * sizeof(WeighedTile) / sizeof(uint32_t));
  std::memcpy(guarded.data(), made.data(), guarded.size() * sizeof(uint32_t));
  ExpectGuard(guarded, kGuard * sizeof(WeighedTile) / sizeof(uint32_t));
  const int64_t words = MaskWords(c.table.num_offsets);
  for (int64_t tile_rows = kMaskTileRows; tile_rows <= kMaxBlockTileRows; tile_rows *= 2) {
    const int64_t mask_tiles = tile_rows / kMaskTileRows;
    const int64_t count = (c.table.num_rows + tile_rows - 1) / tile_rows;
    std::vector<bool> is_there(static_cast<size_t>(count));
    int before = std::numeric_limits<int>::max();
    for (int64_t i = 0; i < count; ++i) {
      const WeighedTile& weighed = made[static_cast<size_t>(TilesByWeightBegin(c.capacity, tile_rows) + i)];
      const int32_t tile = weighed.tile;
      ASSERT_TRUE(tile >= 0 && tile < count) << tile << " of " << count << " tiles of " << tile_rows << " rows";
      ASSERT_FALSE(is_there[static_cast<size_t>(tile)]) << tile << " again, of " << tile_rows << " rows";
      is_there[static_cast<size_t>(tile)] = true;
      int weight = 0;
      for (int64_t word = 0; word < words; ++word) {
        uint32_t mask = 0;
        for (int64_t t = 0; t < mask_tiles; ++t) {
          const uint32_t of_rows = tiles.masks[static_cast<size_t>((tile * mask_tiles + t) * words + word)];
          if (words == 1) {
            ASSERT_EQ(weighed.masks[t], of_rows) << "tile " << tile << ", rows " << t;
          }
          mask |= of_rows;
        }
        weight += std::popcount(mask);
      }
      ASSERT_LE(weight, before) << "at " << i << " of " << count << " tiles of " << tile_rows << " rows";
      before = weight;
    }
  }
}

void ExpectTiles(const TilesCase& c) {
  SCOPED_TRACE(testing::Message() << c.table.num_offsets << " offsets, " << c.table.num_rows << " rows of "
                                  << c.capacity << ", pitch " << c.table.pitch);
  const NeighbourTable& table = c.table;
  std::vector<int32_t> rows(static_cast<size_t>(table.num_rows));
  std::iota(rows.begin(), rows.end(), 0);
  if (!c.keeps_order) rows = RowsInTileOrder(table, c.order);
  const HostTiles expected = MakeHostTiles(table, rows, c.capacity);
  const std::vector<int32_t> out_rows = c.out_rows.ToHost(), in_rows = c.in_rows.ToHost();
  const std::vector<uint32_t> masks = c.masks.ToHost();
  ExpectGuard(out_rows);
  ExpectGuard(in_rows);
  ExpectGuard(masks);
  const std::vector<int32_t> counters = c.counters.ToHost();
  ExpectGuard(counters);
  const auto num_counters = static_cast<ptrdiff_t>(table.num_rows > 0 ? NumTileCounters(table.num_rows) : 0);
  EXPECT_EQ(std::count(counters.begin(), counters.begin() + num_counters, 0), num_counters);
  ExpectTilesByWeight(c, expected);
  const int64_t num_places = NumTilePlaces(table.num_rows), words = MaskWords(table.num_offsets);
  std::vector<bool> is_there(static_cast<size_t>(table.num_rows));
  for (int64_t place = 0; place < num_places; ++place) {
    const int32_t row = out_rows[static_cast<size_t>(place)];
    ASSERT_EQ(row, expected.out_rows[static_cast<size_t>(place)]) << "place " << place;
    ASSERT_EQ(row >= 0, place < table.num_rows) << "place " << place;
    if (row < 0) continue;
    ASSERT_LT(row, table.num_rows);
    ASSERT_FALSE(is_there[static_cast<size_t>(row)]) << "row " << row << " again at place " << place;
    is_there[static_cast<size_t>(row)] = true;
  }
  for (int64_t tile = 0; tile < num_places / kMaskTileRows; ++tile) {
    for (int64_t word = 0; word < words; ++word) {
      const auto i = static_cast<size_t>(tile * words + word);
      ASSERT_EQ(masks[i], expected.masks[i]) << "tile " << tile << " word " << word;
    }
    for (int32_t k = 0; k < table.num_offsets; ++k) {
      if ((masks[static_cast<size_t>(tile * words + k / 32)] >> (k % 32) & 1) == 0) continue;
      for (int64_t i = 0; i < kMaskTileRows; ++i) {
        const auto at = static_cast<size_t>((tile * table.num_offsets + k) * kMaskTileRows + i);
        ASSERT_EQ(in_rows[at], expected.in_rows[at]) << "tile " << tile << " offset " << k << " place " << i;
      }
    }
  }
}

// Makes the tiles of all cases in one call and checks each case.
void CheckTogether(const TilesCases& cases) {
  std::vector<TilesParams> params;
  for (const auto& c : cases) params.push_back(c->Params());
  const size_t bytes = cuda::TilesWorkspaceBytes(params);
  EXPECT_EQ(bytes % 256, 0u);
  const DeviceArray<uint8_t> workspace(Device::kCuda, bytes + kGuard);
  ExpectCudaSuccess(cuda::MakeTiles(params, workspace.data(), TestStream()));
  support::Synchronize();
  const std::vector<uint8_t> after = workspace.ToHost();
  EXPECT_TRUE(std::all_of(after.end() - kGuard, after.end(), [](uint8_t byte) { return byte == 0xCD; }));
  for (const auto& c : cases) {
    ExpectTiles(*c);
    if (testing::Test::HasFatalFailure()) return;
  }
}

SortOrder RandomOrder(int32_t num_offsets, Random& random) {
  SortOrder order{};
  if (num_offsets > kSortBits) return order;
  std::iota(order.begin(), order.begin() + num_offsets, int8_t{0});
  std::shuffle(order.begin(), order.begin() + num_offsets, random.engine());
  return order;
}

// Returns a random case. Its capacity exceeds num_rows by `spare`, and its pitch exceeds the capacity by
// `pitch_margin`.
std::unique_ptr<TilesCase> RandomCase(Presence presence, double density, int32_t num_offsets, int64_t num_rows,
                                      int64_t spare, int64_t pitch_margin, Random& random) {
  const int64_t capacity = num_rows + spare;
  return std::make_unique<TilesCase>(
      RandomNeighbours(presence, density, num_offsets, num_rows, num_rows + 9, capacity + pitch_margin, random),
      capacity, RandomOrder(num_offsets, random));
}

const std::vector<int32_t> kNumOffsets = {0, 1, 2, 8, 9, 10, 18, 19, 26, 27, 28, 32, 33, 125, 343, 625};
const std::vector<double> kDensities = {0.01, 0.05, 0.2, 0.5, 0.9};

class TilesTest : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }
};

TEST_F(TilesTest, NothingToDo) {
  EXPECT_EQ(cuda::TilesWorkspaceBytes({}), 0u);
  EXPECT_EQ(cuda::MakeTiles({}, nullptr, TestStream()), cudaSuccess);
  Random random(41);
  TilesCases cases;
  for (int i = 0; i < 3; ++i) cases.push_back(RandomCase(Presence::kEmpty, 0, 27, 0, 0, 4, random));
  CheckTogether(cases);
}

// Some rulebooks of a call keep their rows' order, and others sort them.
TEST_F(TilesTest, RowsThatKeepTheirOrder) {
  Random random(42);
  TilesCases cases;
  for (const int32_t num_offsets : {1, 8, 27, 28, 125, 343}) {
    for (const int64_t num_rows : {0, 1, 64, 300, 1001}) {
      cases.push_back(RandomCase(Presence::kRandom, 0.2, num_offsets, num_rows, 70, 3, random));
      cases.back()->keeps_order = num_rows != 64;
    }
  }
  CheckTogether(cases);
}

// No rulebook of these calls sorts its rows.
TEST_F(TilesTest, NothingButRowsThatKeepTheirOrder) {
  Random random(44);
  for (const int32_t num_offsets : kNumOffsets) {
    TilesCases cases;
    for (const int64_t num_rows : {31, 32, 33, 63, 64, 65, 96, 97, 127, 128, 129, 5000}) {
      cases.push_back(RandomCase(Presence::kRandom, random.OneOf(kDensities), num_offsets, num_rows, num_rows % 5,
                                 num_rows % 3, random));
      cases.back()->keeps_order = true;
    }
    CheckTogether(cases);
    if (HasFatalFailure()) return;
  }
}

TEST_F(TilesTest, RowsOffsetsOfLargeKernelsAreRefused) {
  const uint32_t offsets = 0;
  TilesParams params{.num_offsets = kSortBits + 1, .row_masks = &offsets, .out_capacity = 1};
  EXPECT_EQ(cuda::MakeTiles({&params, 1}, nullptr, TestStream()), cudaErrorInvalidValue);
}

TEST_F(TilesTest, RowsInputsWithoutOffsetsAreRefused) {
  const int32_t input = 0;
  const TilesParams params{.num_offsets = 1, .row_inputs = &input, .row_inputs_pitch = 1, .out_capacity = 1};
  EXPECT_EQ(cuda::MakeTiles({&params, 1}, nullptr, TestStream()), cudaErrorInvalidValue);
}

TEST_F(TilesTest, RowsInputsWithoutAPitchAreRefused) {
  const uint32_t offsets = 0;
  const int32_t input = 0;
  const TilesParams params{.num_offsets = 1, .row_masks = &offsets, .row_inputs = &input, .out_capacity = 1};
  EXPECT_EQ(cuda::MakeTiles({&params, 1}, nullptr, TestStream()), cudaErrorInvalidValue);
}

TEST_F(TilesTest, OrdersThatAreNoPermutationsAreRefused) {
  SortOrder twice = OffsetsByDistance({.kernel_size = {3, 3, 3, 1}}), beyond = twice, negative = twice;
  twice[5] = twice[6];
  beyond[5] = 27;
  negative[5] = -1;
  for (const SortOrder& order : {twice, beyond, negative}) {
    const TilesParams params{.num_offsets = 27, .out_capacity = 1, .order = order};
    EXPECT_EQ(cuda::MakeTiles({&params, 1}, nullptr, TestStream()), cudaErrorInvalidValue);
  }
}

// As in the swapped rulebook of blocks, where the lists of inputs have a pitch of one value.
TEST_F(TilesTest, RowsWithAtMostOneInput) {
  Random random(52);
  TilesCases cases;
  for (const int64_t num_rows : {4, 64, 5000}) {
    const int64_t capacity = num_rows + 20;
    NeighbourTable table = RandomNeighbours(Presence::kRandom, 0.2, 8, num_rows, num_rows + 9, capacity, random);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int32_t k = 0, count = 0; k < table.num_offsets; ++k) {
        int32_t& in_row = table.at(k, row);
        if (in_row >= 0 && ++count > 1) in_row = -1;
      }
    }
    cases.push_back(std::make_unique<TilesCase>(table, capacity, RandomOrder(table.num_offsets, random)));
    ASSERT_EQ(cases.back()->InputsPitch(), 1);
  }
  CheckTogether(cases);
}

TEST_F(TilesTest, EveryRulebookAlone) {
  Random random(42);
  for (const int32_t num_offsets : kNumOffsets) {
    for (const int64_t num_rows : {1, 63, 64, 65, 1000}) {
      TilesCases cases;
      cases.push_back(RandomCase(Presence::kRandom, random.OneOf(kDensities), num_offsets, num_rows, 0, 0, random));
      CheckTogether(cases);
      if (HasFatalFailure()) return;
    }
  }
}

// The call makes tiles of 77 rulebooks. One sort takes at most 24, so it sorts several times.
TEST_F(TilesTest, ManyRulebooksTogether) {
  Random random(43);
  TilesCases cases;
  for (const int32_t num_offsets : kNumOffsets) {
    for (const int64_t num_rows : {0, 1, 63, 64, 65, 1000, 5000}) {
      const bool is_exact = random.Chance(0.3);
      cases.push_back(RandomCase(kPresences[cases.size() % std::size(kPresences)], random.OneOf(kDensities),
                                 num_offsets, num_rows, is_exact ? 0 : random.OneOf(std::vector<int64_t>{1, 70, 700}),
                                 is_exact ? 0 : 11, random));
    }
  }
  ASSERT_GT(cases.size(), 62u);
  std::shuffle(cases.begin(), cases.end(), random.engine());
  CheckTogether(cases);
}

// The numbers of rulebooks are those that one or more sorts take, one less and one more.
TEST_F(TilesTest, AroundTheRulebooksOfOneSort) {
  Random random(44);
  for (const int count : {2, 3, 7, 8, 15, 16, 23, 24, 25, 48, 49}) {
    SCOPED_TRACE(count);
    TilesCases cases;
    for (int i = 0; i < count; ++i) {
      cases.push_back(RandomCase(i % 3 == 0 ? Presence::kEmpty : Presence::kRandom, 0.4, 27, 150 + i, 40, 3, random));
    }
    CheckTogether(cases);
    if (HasFatalFailure()) return;
  }
}

TEST_F(TilesTest, EveryKindOfMasks) {
  Random random(45);
  for (const Presence presence : kPresences) {
    TilesCases cases;
    for (const int32_t num_offsets : kNumOffsets) {
      SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(presence));
      cases.push_back(RandomCase(presence, 0.5, num_offsets, 1000, 300, 20, random));
    }
    CheckTogether(cases);
    if (HasFatalFailure()) return;
  }
}

// Few different masks occur, so the order of most rows follows only from their indices.
TEST_F(TilesTest, RowsAlikeKeepTheirOrder) {
  Random random(46);
  TilesCases cases;
  for (const int32_t num_offsets : {1, 2, 3, 40}) {
    cases.push_back(RandomCase(Presence::kRandom, 0.5, num_offsets, 20000, 5000, 0, random));
  }
  CheckTogether(cases);
}

TEST_F(TilesTest, InTheOrderByDistance) {
  Random random(47);
  TilesCases cases;
  for (const ConvGeometry& geometry :
       {ConvGeometry{.kernel_size = {3, 3, 3, 1}}, ConvGeometry{.kernel_size = {2, 2, 2, 1}},
        ConvGeometry{.dimension = 2, .kernel_size = {3, 3, 1, 1}}, ConvGeometry{.kernel_size = {5, 5, 5, 1}}}) {
    cases.push_back(std::make_unique<TilesCase>(
        RandomNeighbours(Presence::kRandom, 0.2, geometry.NumOffsets(), 3000, 3000, 3100, random), 3100,
        OffsetsByDistance(geometry)));
  }
  CheckTogether(cases);
}

// The rows fill more blocks than one launch starts.
TEST_F(TilesTest, AMillionRows) {
  Random random(48);
  TilesCases cases;
  cases.push_back(RandomCase(Presence::kRandom, 0.3, 8, 1'000'000, 17, 1, random));
  cases.push_back(RandomCase(Presence::kRandom, 0.1, 27, 100'000, 0, 0, random));
  CheckTogether(cases);
}

// If the number of rows in device memory exceeds the capacity, the kernel must use the capacity.
TEST_F(TilesTest, CountBeyondTheCapacity) {
  Random random(49);
  TilesCases cases;
  for (const int32_t num_offsets : {8, 27, 125}) {
    cases.push_back(
        std::make_unique<TilesCase>(RandomNeighbours(Presence::kRandom, 0.3, num_offsets, 200, 200, 210, random), 200,
                                    RandomOrder(num_offsets, random), 205));
  }
  CheckTogether(cases);
}

TEST_F(TilesTest, WorkspaceOfTheCapacitiesAlone) {
  Random random(50);
  std::vector<TilesParams> params = {{.num_offsets = 27, .pitch = 1000, .out_capacity = 1000},
                                     {.num_offsets = 8, .pitch = 500, .out_capacity = 500}};
  const size_t bytes = cuda::TilesWorkspaceBytes(params);
  EXPECT_GT(bytes, 0u);
  params[0].pitch = 5000;
  params[1].order = RandomOrder(8, random);
  EXPECT_EQ(cuda::TilesWorkspaceBytes(params), bytes);
  params[0].keeps_order = true;
  EXPECT_LT(cuda::TilesWorkspaceBytes(params), bytes) << "memory to sort rows that keep their order";
}

}  // namespace
}  // namespace voxserve::kernels::tiles_cuda_test
