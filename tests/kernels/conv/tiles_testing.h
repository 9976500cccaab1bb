#pragma once

// Makes rulebooks of every kind of convolution, also as tables of neighbours. Makes their tiles with simple host code,
// by the order that kernels/conv/tiles.h defines; tests compare the GPU's tiles with these. A tile is a group of 64
// output rows that an implicit GEMM multiplies together, with the offsets at which any of these rows has a neighbour.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/conv/tiles.h"
#include "tests/kernels/conv/rulebook_testing.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels {

// The value of entries that kernels must not read. As a row number it is out of range, so that a read shows.
inline constexpr int32_t kRubbishRow = 0x7f7f7f7f;

// A table [K, pitch] with the input row that an output row reads at each offset, or -1 if there is none. Entries behind
// num_rows are kRubbishRow.
struct NeighbourTable {
  int32_t num_offsets = 0;
  int64_t num_rows = 0;  // output rows
  int64_t pitch = 0;
  std::vector<int32_t> in_rows;

  NeighbourTable(int32_t k, int64_t rows, int64_t table_pitch)
      : num_offsets(k), num_rows(rows), pitch(table_pitch), in_rows(static_cast<size_t>(k * table_pitch), kRubbishRow) {
    for (int32_t offset = 0; offset < k; ++offset) std::fill_n(in_rows.begin() + offset * pitch, rows, -1);
  }
  int32_t& at(int32_t k, int64_t row) { return in_rows[static_cast<size_t>(k * pitch + row)]; }
  int32_t at(int32_t k, int64_t row) const { return in_rows[static_cast<size_t>(k * pitch + row)]; }
};

// Returns the rulebook as a table of neighbours.
inline NeighbourTable Neighbours(const RulebookView& rulebook, int64_t pitch) {
  NeighbourTable table(rulebook.num_offsets, rulebook.num_out_rows, pitch);
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
      table.at(k, rulebook.out_rows[p]) = rulebook.in_rows[p];
    }
  }
  return table;
}

// Tells which output rows have a neighbour at an offset. kFull: all. kEmpty: none. kOneRow: one row, the same at every
// offset. kOneTile: 64 consecutive rows, the same at every offset. kAlike: all rows at random offsets, none at the
// others. kRandom: every row and offset is drawn on its own.
enum class Presence { kFull, kEmpty, kOneRow, kOneTile, kAlike, kRandom };
inline constexpr Presence kPresences[] = {Presence::kFull,    Presence::kEmpty, Presence::kOneRow,
                                          Presence::kOneTile, Presence::kAlike, Presence::kRandom};

// Returns a table whose neighbours are random input rows. `density` is used by kAlike, as the share of offsets at which
// all rows have a neighbour, and by kRandom, as the share of neighbours that exist.
inline NeighbourTable RandomNeighbours(Presence presence, double density, int32_t num_offsets, int64_t num_rows,
                                       int64_t num_in, int64_t pitch, Random& random) {
  NeighbourTable table(num_offsets, num_rows, pitch);
  if (num_rows == 0 || num_in == 0) return table;
  auto& engine = random.engine();
  const double threshold = density * 0x1p32;
  const auto one =
      static_cast<int64_t>(engine() % static_cast<uint64_t>(num_rows));  // the row, or the first row of the tile
  for (int32_t k = 0; k < num_offsets; ++k) {
    const bool all_have = static_cast<double>(engine()) < threshold;
    for (int64_t row = 0; row < num_rows; ++row) {
      const auto has = [&] {
        switch (presence) {
          case Presence::kFull:
            return true;
          case Presence::kEmpty:
            return false;
          case Presence::kOneRow:
            return row == one;
          case Presence::kOneTile:
            return row >= one && row < one + kMaskTileRows;
          case Presence::kAlike:
            return all_have;
          case Presence::kRandom:
            break;
        }
        return static_cast<double>(engine()) < threshold;
      };
      if (has()) table.at(k, row) = static_cast<int32_t>(engine() % static_cast<uint64_t>(num_in));
    }
  }
  return table;
}

// Returns the rulebook of a submanifold convolution: the centre offset pairs each row with itself, and all other pairs
// are random.
inline Rulebook RandomSubmanifoldRulebook(int32_t num_offsets, int64_t num_rows, double density, Random& random) {
  const Rulebook pairs = RandomRulebook(num_offsets, num_rows, num_rows, density, random);
  Rulebook rulebook{.num_out_rows = num_rows, .num_in_rows = num_rows, .offset_begin = {0}};
  for (int32_t k = 0; k < num_offsets; ++k) {
    if (k == num_offsets / 2) {
      for (int32_t row = 0; row < num_rows; ++row) {
        rulebook.in_rows.push_back(row);
        rulebook.out_rows.push_back(row);
      }
    } else {
      const auto begin = pairs.offset_begin[static_cast<size_t>(k)];
      const auto end = pairs.offset_begin[static_cast<size_t>(k) + 1];
      rulebook.in_rows.insert(rulebook.in_rows.end(), pairs.in_rows.begin() + begin, pairs.in_rows.begin() + end);
      rulebook.out_rows.insert(rulebook.out_rows.end(), pairs.out_rows.begin() + begin, pairs.out_rows.begin() + end);
    }
    rulebook.offset_begin.push_back(static_cast<int64_t>(rulebook.in_rows.size()));
  }
  return rulebook;
}

// Returns a rulebook in which every output row has a pair at every offset. At offset k, output row r reads input row r
// + k, modulo num_rows.
inline Rulebook DenseRulebook(int32_t num_offsets, int64_t num_rows) {
  Rulebook rulebook{.num_out_rows = num_rows, .num_in_rows = num_rows, .offset_begin = {0}};
  for (int32_t k = 0; k < num_offsets; ++k) {
    for (int64_t row = 0; row < num_rows; ++row) {
      rulebook.in_rows.push_back(static_cast<int32_t>((row + k) % num_rows));
      rulebook.out_rows.push_back(static_cast<int32_t>(row));
    }
    rulebook.offset_begin.push_back(static_cast<int64_t>(rulebook.in_rows.size()));
  }
  return rulebook;
}

struct RulebookCase {
  std::string name;
  Rulebook rulebook;
  bool is_inverse = false;  // if true, View() returns the rulebook with inputs and outputs swapped

  RulebookView View() const {
    RulebookView view = rulebook.View();
    if (is_inverse) {
      std::swap(view.in_rows, view.out_rows);
      std::swap(view.num_in_rows, view.num_out_rows);
    }
    return view;
  }
};

inline std::vector<RulebookCase> RulebookCases(Random& random) {
  std::vector<RulebookCase> cases;
  cases.push_back({"strided", RandomRulebook(8, 300, 170, 0.4, random)});
  cases.push_back({"inverse", RandomRulebook(8, 300, 170, 0.4, random), true});
  cases.push_back({"submanifold", RandomSubmanifoldRulebook(27, 211, 0.3, random)});
  cases.push_back({"sparse", RandomSubmanifoldRulebook(27, 530, 0.03, random)});
  cases.push_back({"dense", DenseRulebook(27, 150)});
  cases.push_back({"identity alone", RandomSubmanifoldRulebook(1, 130, 0, random)});
  cases.push_back({"one row", RandomSubmanifoldRulebook(27, 1, 0, random)});
  cases.push_back({"no pairs", RandomRulebook(5, 60, 70, 0, random)});
  cases.push_back({"no inputs", RandomRulebook(3, 0, 9, 0, random)});
  cases.push_back({"no outputs", RandomRulebook(3, 9, 0, 0, random)});
  cases.push_back({"no offsets", RandomRulebook(0, 9, 40, 0, random)});
  cases.push_back({"343 offsets", RandomSubmanifoldRulebook(343, 40, 0.2, random)});
  cases.push_back({"625 offsets", RandomRulebook(625, 90, 300, 0.05, random)});
  return cases;
}

// Writes NaN to memory that kernels must not read: the margins of rows, and rows that are in no pair.
inline void Poison(const NeighbourTable& table, Matrix& in) {
  std::vector<bool> is_read(static_cast<size_t>(in.rows));
  for (int32_t k = 0; k < table.num_offsets; ++k) {
    for (int64_t row = 0; row < table.num_rows; ++row) {
      if (table.at(k, row) >= 0) is_read[static_cast<size_t>(table.at(k, row))] = true;
    }
  }
  for (int64_t row = 0; row < in.rows; ++row) {
    for (int64_t column = -in.before; column < in.pitch - in.before; ++column) {
      if (column < 0 || column >= in.channels || !is_read[static_cast<size_t>(row)]) {
        in.at(row, column) = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

// Returns the bits by which a row is sorted. With up to kSortBits offsets, bit i is set if the row has a neighbour at
// offset order[i]. With more offsets, neighbouring offsets share a bit, which is set if any of them has a neighbour.
inline uint32_t SortBitsOfRow(const NeighbourTable& table, int64_t row, const SortOrder& order) {
  uint32_t code = 0;
  if (table.num_offsets <= kSortBits) {
    for (int32_t bit = 0; bit < table.num_offsets; ++bit) {
      if (table.at(order[static_cast<size_t>(bit)], row) >= 0) code |= 1u << bit;
    }
  } else {
    for (int32_t k = 0; k < table.num_offsets; ++k) {
      if (table.at(k, row) >= 0) code |= 1u << (k * kSortBits / table.num_offsets);
    }
  }
  return code;
}

// Returns the position of `code` in the sequence of Gray codes. Code number r is r ^ (r >> 1).
inline uint32_t GrayRank(uint32_t code) {
  uint32_t rank = 0;
  for (int bit = kSortBits - 1; bit >= 0; --bit) rank |= ((code >> bit ^ rank >> (bit + 1)) & 1) << bit;
  return rank;
}

// Returns the rows that are sampled to learn how often each bit occurs.
inline std::vector<int64_t> SampledRows(const NeighbourTable& table) {
  const int64_t num_sampled = std::min(table.num_rows, NumSampledRows(table.num_offsets));
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < num_sampled; ++i) rows.push_back(i * table.num_rows / num_sampled);
  return rows;
}

// Returns the place of a mask of num_bits bits among all masks in the order of their Gray ranks, as kRankBits
// (kernels/conv/tiles.h) describes it.
inline uint32_t PlaceOfMask(uint32_t mask, int num_bits) {
  std::vector<uint32_t> shares = {kPlaceOne};  // of the masks without the first i bits
  for (int i = 0; i < num_bits; ++i) shares.push_back(ShareWithoutBit(shares.back()));
  uint32_t place = shares.back() / 2;
  for (int bit = 0; bit < num_bits; ++bit) {
    if ((mask >> bit & 1) != 0) place = PlaceWithBit(shares[static_cast<size_t>(num_bits - 1 - bit)], place);
  }
  return place;
}

// Returns the rows in the order of tiles. The class of a row is its highest sort bit that is set. Rows are in
// descending order of their class, and within a class in descending order of the Gray rank of their lower bits. For the
// rank, each class puts its lower bits in an order of its own: the most frequent bit first. Rows of equal ranks, long
// ones shortened, keep their order, and rows without neighbours are last.
inline std::vector<int32_t> RowsInTileOrder(const NeighbourTable& table, const SortOrder& order) {
  std::vector<uint32_t> row_bits;
  SortOrder by = order;  // kernels of few offsets are sorted by the offsets' numbers
  if (table.num_offsets <= kPlainRankBits) std::iota(by.begin(), by.end(), int8_t{0});
  for (int64_t row = 0; row < table.num_rows; ++row) row_bits.push_back(SortBitsOfRow(table, row, by));
  // For each class: the bits below the class's own bit, the most frequent first.
  std::vector<std::vector<int>> orders;
  for (int row_class = 0; row_class < kSortBits; ++row_class) {
    std::vector<int> counts(static_cast<size_t>(row_class));
    for (const int64_t row : SampledRows(table)) {
      const uint32_t bits = row_bits[static_cast<size_t>(row)];
      if (bits >> row_class != 1) continue;
      for (int bit = 0; bit < row_class; ++bit) counts[static_cast<size_t>(bit)] += static_cast<int>(bits >> bit & 1);
    }
    std::vector<int>& by_count = orders.emplace_back(counts.size());
    std::iota(by_count.begin(), by_count.end(), 0);
    std::stable_sort(by_count.begin(), by_count.end(),
                     [&](int a, int b) { return counts[static_cast<size_t>(a)] > counts[static_cast<size_t>(b)]; });
  }
  std::vector<uint32_t> ranks;
  for (const uint32_t bits : row_bits) {
    uint32_t rank = table.num_offsets <= kPlainRankBits ? GrayRank(bits) : 0;
    for (int row_class = 0; row_class < kSortBits && table.num_offsets > kPlainRankBits; ++row_class) {
      if (bits >> row_class != 1) continue;
      uint32_t code = 0;
      const std::vector<int>& by_count = orders[static_cast<size_t>(row_class)];
      for (size_t place = 0; place < by_count.size(); ++place) code |= (bits >> by_count[place] & 1) << place;
      if (table.num_offsets <= kRankBits) {
        rank = (1u << row_class) + GrayRank(code);
      } else {
        const auto place =
            static_cast<uint32_t>(uint64_t{PlaceOfMask(code, row_class)} * (1u << kPlaceBits) / kPlaceOne);
        rank = (static_cast<uint32_t>(row_class + 1) << kPlaceBits) + place;
      }
    }
    ranks.push_back(rank);
  }
  std::vector<int32_t> rows(static_cast<size_t>(table.num_rows));
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](int32_t a, int32_t b) { return ranks[static_cast<size_t>(a)] > ranks[static_cast<size_t>(b)]; });
  return rows;
}

// The arrays of a TilesView (kernels/conv/tiles.h) on the host. A place is a row's position in the order of tiles.
struct HostTiles {
  std::vector<int32_t> out_rows;  // [places]
  std::vector<uint32_t> masks;    // [tiles, MaskWords(K)]
  std::vector<int32_t> in_rows;   // [tiles, K, 64]
};

// Makes the tiles of rows in the given order. Entries that the layout leaves undefined get invalid values: those of
// offsets that a tile does not have, and those behind the last row's tile.
inline HostTiles MakeHostTiles(const NeighbourTable& table, const std::vector<int32_t>& rows, int64_t capacity) {
  const int64_t num_places = NumTilePlaces(capacity), num_rows = static_cast<int64_t>(rows.size());
  const int64_t words = MaskWords(table.num_offsets);
  HostTiles tiles{.out_rows = std::vector<int32_t>(static_cast<size_t>(num_places), kRubbishRow),
                  .masks = std::vector<uint32_t>(static_cast<size_t>(num_places / kMaskTileRows * words), ~0u),
                  .in_rows = std::vector<int32_t>(static_cast<size_t>(num_places * table.num_offsets), kRubbishRow)};
  for (int64_t first = 0; first < NumTilePlaces(num_rows); first += kMaskTileRows) {
    const int64_t tile = first / kMaskTileRows;
    int32_t in_tile[kMaskTileRows];
    for (int64_t i = 0; i < kMaskTileRows; ++i) {
      in_tile[i] = first + i < num_rows ? rows[static_cast<size_t>(first + i)] : -1;
    }
    std::copy_n(in_tile, kMaskTileRows, tiles.out_rows.begin() + first);
    std::fill_n(tiles.masks.begin() + tile * words, words, 0);
    for (int32_t k = 0; k < table.num_offsets; ++k) {
      const auto has = [&](int32_t row) { return row >= 0 && table.at(k, row) >= 0; };
      if (std::none_of(in_tile, in_tile + kMaskTileRows, has)) continue;
      tiles.masks[static_cast<size_t>(tile * words + k / 32)] |= 1u << (k % 32);
      std::transform(in_tile, in_tile + kMaskTileRows,
                     tiles.in_rows.begin() + (tile * table.num_offsets + k) * kMaskTileRows,
                     [&](int32_t row) { return row < 0 ? -1 : table.at(k, row); });
    }
  }
  return tiles;
}

// Owns device memory with tiles that the host made.
class DeviceTiles {
 public:
  DeviceTiles(const NeighbourTable& table, const std::vector<int32_t>& rows, int64_t capacity)
      : DeviceTiles(table.num_offsets, table.num_rows, capacity, MakeHostTiles(table, rows, capacity)) {}

  // Returns the tiles. If the number of rows equals the capacity, num_out is null. Else kernels read the number of rows
  // from device memory.
  TilesView View() const {
    return {.num_offsets = num_offsets_,
            .out_rows = out_rows_.data(),
            .masks = masks_.data(),
            .in_rows = in_rows_.data(),
            .counters = counters_.data(),
            .by_weight = by_weight_.data(),
            .num_out = num_rows_ == capacity_ ? nullptr : num_out_.data(),
            .out_capacity = capacity_};
  }
  std::vector<int32_t> Counters() const { return counters_.ToHost(); }

 private:
  DeviceTiles(int32_t num_offsets, int64_t num_rows, int64_t capacity, const HostTiles& tiles)
      : num_offsets_(num_offsets),
        num_rows_(num_rows),
        capacity_(capacity),
        out_rows_(Device::kCuda, tiles.out_rows),
        masks_(Device::kCuda, tiles.masks),
        in_rows_(Device::kCuda, tiles.in_rows),
        counters_(Device::kCuda, std::vector<int32_t>(static_cast<size_t>(NumTileCounters(capacity)))),
        by_weight_(Device::kCuda, LightestFirst(num_offsets, num_rows, capacity, tiles.masks)),
        num_out_(Device::kCuda, std::vector<int64_t>{num_rows}) {}

  // Returns TilesView::by_weight in an order that differs from the true one: the tiles in descending order of their
  // numbers. Results of kernels must not depend on this order.
  static std::vector<WeighedTile> LightestFirst(int32_t num_offsets, int64_t num_rows, int64_t capacity,
                                                const std::vector<uint32_t>& masks) {
    std::vector<WeighedTile> tiles(static_cast<size_t>(NumTilesByWeight(capacity)));
    for (int64_t tile_rows = kMaskTileRows; tile_rows <= kMaxBlockTileRows; tile_rows *= 2) {
      const int64_t begin = TilesByWeightBegin(capacity, tile_rows), count = (num_rows + tile_rows - 1) / tile_rows;
      for (int64_t i = 0; i < count; ++i) {
        WeighedTile& weighed = tiles[static_cast<size_t>(begin + i)];
        weighed.tile = static_cast<int32_t>(count - 1 - i);
        const int64_t num_masks = tile_rows / kMaskTileRows;
        for (int64_t t = 0; t < num_masks && MaskWords(num_offsets) == 1; ++t) {
          weighed.masks[t] = masks[static_cast<size_t>(weighed.tile * num_masks + t)];
        }
      }
    }
    return tiles;
  }

  int32_t num_offsets_;
  int64_t num_rows_, capacity_;
  DeviceArray<int32_t> out_rows_;
  DeviceArray<uint32_t> masks_;
  DeviceArray<int32_t> in_rows_;
  DeviceArray<int32_t> counters_;
  DeviceArray<WeighedTile> by_weight_;
  DeviceArray<int64_t> num_out_;
};

}  // namespace voxserve::kernels
