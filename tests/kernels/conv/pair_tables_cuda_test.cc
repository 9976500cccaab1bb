// Compares the pair tables (pair_tables.h) that the GPU makes from a map search's neighbours with the tables that plain
// loops on the host compute.

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/conv/pair_tables.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::pair_tables_cuda_test {
namespace {

using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

// The value with which the tests fill memory before a kernel writes it.
constexpr int32_t kRubbish = static_cast<int32_t>(0xCDCDCDCD);

// Random neighbours as a map search returns them. Within an offset, each input row has at most one output row.
struct Neighbours {
  int32_t num_offsets;
  int64_t num_in, num_out;
  int64_t in_capacity, out_capacity;
  // [K, out_capacity]. Entries behind num_out are 0, which looks like a row; kernels must not use them.
  std::vector<int32_t> rows;

  Neighbours(int32_t offsets, int64_t in, int64_t out, int64_t slack, double density)
      : num_offsets(offsets), num_in(in), num_out(out), in_capacity(in + slack), out_capacity(out + slack) {
    std::mt19937 random(5);
    std::vector<int32_t> in_rows(static_cast<size_t>(num_in));
    std::iota(in_rows.begin(), in_rows.end(), 0);
    rows.assign(static_cast<size_t>(num_offsets * out_capacity), 0);
    for (int64_t k = 0; k < num_offsets; ++k) {
      std::shuffle(in_rows.begin(), in_rows.end(), random);
      // Some offsets are empty, some are full.
      const double likely = k % 5 == 3 ? 0 : k % 7 == 4 ? 1 : density;
      for (int64_t row = 0; row < num_out; ++row) {
        const bool exists = row < num_in && std::uniform_real_distribution<>()(random) < likely;
        rows[static_cast<size_t>(k * out_capacity + row)] = exists ? in_rows[static_cast<size_t>(row)] : -1;
      }
    }
  }
};

// Returns the neighbours of a submanifold convolution: offset K - 1 - k has the pairs of offset k reversed, and the
// centre offset pairs each row with itself.
Neighbours Symmetric(int32_t num_offsets, int64_t num_rows, int64_t slack, double density) {
  Neighbours neighbours(num_offsets, num_rows, num_rows, slack, density);
  const auto at = [&](int64_t k, int64_t row) -> int32_t& {
    return neighbours.rows[static_cast<size_t>(k * neighbours.out_capacity + row)];
  };
  for (int64_t row = 0; row < num_rows; ++row) {
    at(num_offsets / 2, row) = static_cast<int32_t>(row);
    for (int64_t k = num_offsets / 2 + 1; k < num_offsets; ++k) at(k, row) = -1;
  }
  for (int64_t k = 0; k < num_offsets / 2; ++k) {
    for (int64_t row = 0; row < num_rows; ++row) {
      if (at(k, row) >= 0) at(num_offsets - 1 - k, at(k, row)) = static_cast<int32_t>(row);
    }
  }
  return neighbours;
}

struct Tables {
  std::vector<int32_t> in_pairs;    // [K, in_capacity]
  std::vector<int32_t> out_pairs;   // [K, out_capacity]
  std::vector<uint32_t> in_masks;   // [in_capacity, MaskWords(K)]
  std::vector<uint32_t> out_masks;  // [out_capacity, MaskWords(K)]
  std::vector<int64_t> offset_begin;
};

// Returns the masks of a table of pairs [K, capacity]: bit k of a row is set if it has a pair at offset k. All words of
// rows from num_rows on are `past`.
std::vector<uint32_t> Masks(const std::vector<int32_t>& pairs, int32_t num_offsets, int64_t capacity, int64_t num_rows,
                            uint32_t past) {
  const auto num_words = static_cast<size_t>(MaskWords(num_offsets));
  std::vector<uint32_t> masks(static_cast<size_t>(capacity) * num_words, past);
  std::fill_n(masks.begin(), static_cast<size_t>(num_rows) * num_words, 0u);
  for (int64_t k = 0; k < num_offsets; ++k) {
    for (int64_t row = 0; row < num_rows; ++row) {
      if (pairs[static_cast<size_t>(k * capacity + row)] < 0) continue;
      masks[static_cast<size_t>(row) * num_words + static_cast<size_t>(k / 32)] |= 1u << (k % 32);
    }
  }
  return masks;
}

// Computes the tables by their definition. Pairs behind the counts are `past`.
Tables Expected(const Neighbours& neighbours, int32_t past) {
  Tables tables;
  tables.in_pairs.assign(static_cast<size_t>(neighbours.num_offsets * neighbours.in_capacity), past);
  tables.out_pairs.assign(neighbours.rows.size(), past);
  int32_t pair = 0;
  for (int64_t k = 0; k < neighbours.num_offsets; ++k) {
    tables.offset_begin.push_back(pair);
    int32_t* in_pairs = tables.in_pairs.data() + k * neighbours.in_capacity;
    std::fill_n(in_pairs, neighbours.num_in, -1);
    for (int64_t row = 0; row < neighbours.num_out; ++row) {
      const auto at = static_cast<size_t>(k * neighbours.out_capacity + row);
      const int32_t in_row = neighbours.rows[at];
      tables.out_pairs[at] = in_row < 0 ? -1 : pair;
      if (in_row >= 0) in_pairs[in_row] = pair++;
    }
  }
  tables.offset_begin.push_back(pair);
  // Tables made from lists of pairs have no counts, so the kernel clears the masks of the whole capacity.
  const auto past_mask = static_cast<uint32_t>(past == -1 ? 0 : past);
  tables.in_masks =
      Masks(tables.in_pairs, neighbours.num_offsets, neighbours.in_capacity, neighbours.num_in, past_mask);
  tables.out_masks =
      Masks(tables.out_pairs, neighbours.num_offsets, neighbours.out_capacity, neighbours.num_out, past_mask);
  return tables;
}

class PairTablesTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  static void ExpectEqual(const Tables& tables, const Tables& expected) {
    EXPECT_EQ(tables.offset_begin, expected.offset_begin);
    EXPECT_TRUE(tables.in_pairs == expected.in_pairs);
    EXPECT_TRUE(tables.out_pairs == expected.out_pairs);
    EXPECT_TRUE(tables.in_masks == expected.in_masks);
    EXPECT_TRUE(tables.out_masks == expected.out_masks);
  }

  // Makes the tables of a rulebook on the GPU. With in_place, the table of output rows overwrites the neighbours.
  static Tables Run(const Neighbours& neighbours, bool in_place) {
    Rulebook rulebook(neighbours, in_place, false);
    ExpectCudaSuccess(cuda::PairTables(rulebook.params, TestStream()));
    return rulebook.ToHost();
  }

  // Owns the device memory of one rulebook.
  struct Rulebook {
    Rulebook(const Neighbours& of, bool is_in_place, bool is_symmetric)
        : neighbours(of),
          in_place(is_in_place),
          rows(Device::kCuda, of.rows),
          counts(Device::kCuda, std::vector<int64_t>{of.num_in, of.num_out}),
          in_pairs(Device::kCuda, static_cast<size_t>(of.num_offsets * of.in_capacity)),
          out_pairs(Device::kCuda, of.rows.size()),
          in_masks(Device::kCuda, static_cast<size_t>(of.in_capacity * MaskWords(of.num_offsets))),
          out_masks(Device::kCuda, static_cast<size_t>(of.out_capacity * MaskWords(of.num_offsets))),
          offset_begin(Device::kCuda, static_cast<size_t>(of.num_offsets) + 1),
          params{.num_offsets = of.num_offsets,
                 .neighbours = rows.data(),
                 .out_capacity = of.out_capacity,
                 .num_out = counts.data() + 1,
                 .in_capacity = of.in_capacity,
                 .num_in = counts.data(),
                 .is_symmetric = is_symmetric,
                 .in_pairs = in_pairs.data(),
                 .out_pairs = in_place ? rows.data() : out_pairs.data(),
                 .in_masks = in_masks.data(),
                 .out_masks = out_masks.data(),
                 .offset_begin = offset_begin.data()},
          workspace(Device::kCuda, cuda::PairTablesWorkspaceBytes(params)) {
      params.workspace = workspace.data();
    }

    Tables ToHost() const {
      Tables tables{in_pairs.ToHost(), in_place ? rows.ToHost() : out_pairs.ToHost(), in_masks.ToHost(),
                    out_masks.ToHost(), offset_begin.ToHost()};
      if (!in_place) return tables;
      // When the table overwrites the neighbours, entries behind the count keep the value 0.
      for (int64_t k = 0; k < neighbours.num_offsets; ++k) {
        for (int64_t row = neighbours.num_out; row < neighbours.out_capacity; ++row) {
          int32_t& value = tables.out_pairs[static_cast<size_t>(k * neighbours.out_capacity + row)];
          EXPECT_EQ(value, 0);
          value = kRubbish;
        }
      }
      return tables;
    }

    const Neighbours& neighbours;
    bool in_place;
    DeviceArray<int32_t> rows;
    DeviceArray<int64_t> counts;
    DeviceArray<int32_t> in_pairs, out_pairs;
    DeviceArray<uint32_t> in_masks, out_masks;
    DeviceArray<int64_t> offset_begin;
    PairTablesParams params;
    DeviceArray<char> workspace;
  };
};

TEST_F(PairTablesTest, NumberPairsByOffsetThenOutputRow) {
  for (const int32_t num_offsets : {1, 8, 27, 343}) {
    for (const int64_t num_out : {0, 1, 255, 1024, 1025, 5000}) {
      for (const int64_t num_in : {int64_t{0}, num_out / 3, num_out, num_out * 2 + 1}) {
        SCOPED_TRACE(::testing::Message() << num_offsets << " offsets, " << num_in << " -> " << num_out);
        const Neighbours neighbours(num_offsets, num_in, num_out, 300, 0.3);
        const Tables expected = Expected(neighbours, kRubbish);
        ExpectEqual(Run(neighbours, false), expected);
        ExpectEqual(Run(neighbours, true), expected);
      }
    }
  }
}

TEST_F(PairTablesTest, OfAWholeScan) {
  const Neighbours neighbours(27, 92000, 92000, 33000, 0.2);
  const Tables expected = Expected(neighbours, kRubbish);
  ExpectEqual(Run(neighbours, false), expected);
  ExpectEqual(Run(neighbours, true), expected);
}

TEST_F(PairTablesTest, OfSymmetricNeighboursAreTheSame) {
  for (const int32_t num_offsets : {1, 3, 27, 31, 33, 343}) {
    for (const int64_t num_rows : {0, 1, 511, 513, 3000}) {
      SCOPED_TRACE(::testing::Message() << num_offsets << " offsets, " << num_rows << " rows");
      const Neighbours neighbours = Symmetric(num_offsets, num_rows, 70, 0.4);
      Rulebook rulebook(neighbours, true, true);
      ExpectCudaSuccess(cuda::PairTables(rulebook.params, TestStream()));
      ExpectEqual(rulebook.ToHost(), Expected(neighbours, kRubbish));
    }
  }
}

// One call makes the tables of more rulebooks than one launch takes. Each table must equal the loops' result.
TEST_F(PairTablesTest, OfManyRulebooksAreThoseOfEach) {
  std::vector<Neighbours> all;
  for (int i = 0; i < 9; ++i) {
    all.push_back(Symmetric(i % 2 == 0 ? 27 : 125, 1500 >> i, 100 * i, 0.4));
    all.emplace_back(8, 2000 >> i, 900 >> i, 50, 0.5);
    all.emplace_back(0, 10, 10, 0, 0.5);
    all.emplace_back(40, i == 3 ? 1500 : 0, i == 4 ? 1200 : 0, i < 5 ? 0 : 7, 0.5);
  }
  std::vector<std::unique_ptr<Rulebook>> rulebooks;
  std::vector<PairTablesParams> params;
  for (size_t i = 0; i < all.size(); ++i) {
    rulebooks.push_back(std::make_unique<Rulebook>(all[i], i % 3 != 1, i % 4 == 0));
    params.push_back(rulebooks.back()->params);
  }
  ExpectCudaSuccess(cuda::PairTables(params, TestStream()));
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectEqual(rulebooks[i]->ToHost(), Expected(all[i], kRubbish));
  }
}

TEST_F(PairTablesTest, NeedNoRoom) {
  const Neighbours nothing(27, 0, 0, 0, 0);
  ExpectEqual(Run(nothing, false), Expected(nothing, kRubbish));
  const Neighbours no_outputs(27, 1000, 0, 0, 0);
  ExpectEqual(Run(no_outputs, false), Expected(no_outputs, kRubbish));
}

TEST_F(PairTablesTest, FromListsAreTheSame) {
  for (const int64_t num_rows : {0, 1, 1000, 5000}) {
    for (const int32_t num_offsets : {1, 8, 27}) {
      SCOPED_TRACE(::testing::Message() << num_offsets << " offsets, " << num_rows << " rows");
      const Neighbours neighbours(num_offsets, num_rows, num_rows, 10, 0.3);
      const Tables expected = Expected(neighbours, -1);
      std::vector<int32_t> in_rows, out_rows;
      for (int64_t k = 0; k < num_offsets; ++k) {
        for (int64_t row = 0; row < num_rows; ++row) {
          const int32_t in_row = neighbours.rows[static_cast<size_t>(k * neighbours.out_capacity + row)];
          if (in_row < 0) continue;
          in_rows.push_back(in_row);
          out_rows.push_back(static_cast<int32_t>(row));
        }
      }
      const DeviceArray<int32_t> device_in(Device::kCuda, in_rows), device_out(Device::kCuda, out_rows);
      const DeviceArray<int64_t> offset_begin(Device::kCuda, expected.offset_begin);
      const DeviceArray<int32_t> in_pairs(Device::kCuda, expected.in_pairs.size());
      const DeviceArray<int32_t> out_pairs(Device::kCuda, expected.out_pairs.size());
      const DeviceArray<uint32_t> in_masks(Device::kCuda, expected.in_masks.size());
      const DeviceArray<uint32_t> out_masks(Device::kCuda, expected.out_masks.size());
      ExpectCudaSuccess(cuda::PairTablesFromLists({.num_offsets = num_offsets,
                                                   .num_pairs = static_cast<int64_t>(in_rows.size()),
                                                   .in_rows = device_in.data(),
                                                   .out_rows = device_out.data(),
                                                   .offset_begin = offset_begin.data(),
                                                   .in_capacity = neighbours.in_capacity,
                                                   .out_capacity = neighbours.out_capacity,
                                                   .in_pairs = in_pairs.data(),
                                                   .out_pairs = out_pairs.data(),
                                                   .in_masks = in_masks.data(),
                                                   .out_masks = out_masks.data()},
                                                  TestStream()));
      ExpectEqual({in_pairs.ToHost(), out_pairs.ToHost(), in_masks.ToHost(), out_masks.ToHost(), offset_begin.ToHost()},
                  expected);
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::pair_tables_cuda_test
