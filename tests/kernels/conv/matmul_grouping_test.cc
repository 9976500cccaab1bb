// Tests how offsets are grouped into matrix products: the special cases of TorchSparse's Algorithm 4 (Tang et al.,
// MLSys 2022) exactly, and the properties of every grouping.

#include "kernels/conv/matmul_grouping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace voxserve::kernels::matmul_grouping_test {
namespace {

using testing::Each;
using testing::ElementsAre;

std::vector<int64_t> BeginsOf(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> begins = {0};
  for (const int64_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

MatmulGrouping GroupSizes(const std::vector<int64_t>& sizes, bool is_symmetric, const GroupingOptions& options) {
  const std::vector<int64_t> begins = BeginsOf(sizes);
  const auto num_offsets = static_cast<int32_t>(sizes.size());
  return GroupMatmuls({.num_offsets = num_offsets,
                       .offset_begin = begins.data(),
                       .is_symmetric = is_symmetric,
                       .identity_offset = is_symmetric ? num_offsets / 2 : -1},
                      options);
}

// Returns the number of pairs of each offset of a symmetric convolution: the first half, the centre, and the first half
// reversed.
std::vector<int64_t> Mirrored(const std::vector<int64_t>& half, int64_t centre) {
  std::vector<int64_t> sizes = half;
  sizes.push_back(centre);
  sizes.insert(sizes.end(), half.rbegin(), half.rend());
  return sizes;
}

const std::vector<int64_t> kHalf = {10, 12, 11, 30, 9, 28, 40, 8, 14, 50, 33, 70, 65};  // no two neighbours are equal

TEST(WalkOrderTest, MirroredPairsThenTheCentre) {
  EXPECT_THAT(WalkOrder(7, true), ElementsAre(0, 6, 1, 5, 2, 4, 3));
  EXPECT_THAT(WalkOrder(1, true), ElementsAre(0));
  EXPECT_THAT(WalkOrder(4, false), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(WalkOrder(0, false).empty());
}

TEST(GroupMatmulsTest, SeparateGivesEveryOffsetItsOwnProduct) {
  const MatmulGrouping grouping = GroupSizes({3, 0, 5}, false, {.grouping = Grouping::kSeparate});
  EXPECT_THAT(grouping.groups, ElementsAre(MatmulGroup{.first = 0, .count = 1, .rows = 3, .begin = 0},
                                           MatmulGroup{.first = 2, .count = 1, .rows = 5, .begin = 3}));
  EXPECT_THAT(grouping.buffer_begin, ElementsAre(0, -1, 3));
  EXPECT_EQ(grouping.num_gathered_rows, 8);
  EXPECT_EQ(grouping.num_product_rows, 8);
}

TEST(GroupMatmulsTest, SymmetricJoinsMirroredPairsAndLeavesTheIdentityToTheProductBuffer) {
  const MatmulGrouping grouping = GroupSizes(Mirrored({4, 6}, 9), true, {.grouping = Grouping::kSymmetric});
  EXPECT_THAT(grouping.groups, ElementsAre(MatmulGroup{.first = 0, .count = 2, .rows = 4, .begin = 0},
                                           MatmulGroup{.first = 2, .count = 2, .rows = 6, .begin = 8}));
  EXPECT_THAT(grouping.buffer_begin, ElementsAre(0, 8, 20, 14, 4));
  EXPECT_EQ(grouping.num_gathered_rows, 20);
  EXPECT_EQ(grouping.num_product_rows, 29);
}

TEST(GroupMatmulsTest, FixedJoinsTheFirstFourPairsOfASubmanifoldConvolution) {
  const MatmulGrouping grouping = GroupSizes(Mirrored(kHalf, 90), true, {.grouping = Grouping::kFixed});
  EXPECT_THAT(grouping.groups, ElementsAre(MatmulGroup{.first = 0, .count = 8, .rows = 30, .begin = 0},
                                           MatmulGroup{.first = 8, .count = 18, .rows = 70, .begin = 240}));
  EXPECT_EQ(grouping.num_product_rows, 240 + 18 * 70 + 90);
}

TEST(GroupMatmulsTest, FixedJoinsAllOffsetsWithoutSymmetry) {
  const MatmulGrouping grouping = GroupSizes({0, 5, 7, 0, 6, 0}, false, {.grouping = Grouping::kFixed});
  // Offsets without pairs are dropped at both ends. Between other offsets, one stays in the group as padding.
  EXPECT_THAT(grouping.groups, ElementsAre(MatmulGroup{.first = 1, .count = 4, .rows = 7, .begin = 0}));
  EXPECT_THAT(grouping.buffer_begin, ElementsAre(-1, 0, 7, -1, 21, -1));
}

TEST(GroupMatmulsTest, AdaptiveEndsAGroupWhereItsPaddingWouldPassEpsilon) {
  const GroupingOptions options{.epsilon = 0.25, .bmm_max_rows = kNoLimit};
  const MatmulGrouping grouping = GroupSizes({80, 100, 75, 74, 0, 74}, false, options);
  EXPECT_THAT(grouping.groups, ElementsAre(MatmulGroup{.first = 0, .count = 3, .rows = 100, .begin = 0},
                                           MatmulGroup{.first = 3, .count = 1, .rows = 74, .begin = 300},
                                           MatmulGroup{.first = 5, .count = 1, .rows = 74, .begin = 374}));
}

TEST(GroupMatmulsTest, AdaptiveRunsGroupsOfManyRowsOneByOne) {
  const GroupingOptions options{.epsilon = 0.25, .bmm_max_rows = 100};
  const MatmulGrouping grouping = GroupSizes({99, 98, 20, 95, 100}, false, options);
  EXPECT_THAT(grouping.groups, ElementsAre(MatmulGroup{.first = 0, .count = 2, .rows = 99, .begin = 0},
                                           MatmulGroup{.first = 2, .count = 1, .rows = 20, .begin = 198},
                                           MatmulGroup{.first = 3, .count = 1, .rows = 95, .begin = 218},
                                           MatmulGroup{.first = 4, .count = 1, .rows = 100, .begin = 313}));
}

TEST(GroupMatmulsTest, AdaptiveBecomesTheOthersAtItsEnds) {
  const std::vector<int64_t> symmetric = Mirrored(kHalf, 90), strided = {10, 0, 12, 11, 30, 9, 0, 28};
  for (const bool is_symmetric : {true, false}) {
    const std::vector<int64_t>& sizes = is_symmetric ? symmetric : strided;
    const auto groups = [&](const GroupingOptions& options) { return GroupSizes(sizes, is_symmetric, options).groups; };
    EXPECT_EQ(groups({.epsilon = 0.5, .bmm_max_rows = 0}), groups({.grouping = Grouping::kSeparate}));
    EXPECT_EQ(groups({.epsilon = 0, .bmm_max_rows = kNoLimit}), groups({.grouping = Grouping::kSymmetric}));
    const std::vector<MatmulGroup> dense = groups({.epsilon = 1, .bmm_max_rows = kNoLimit});
    ASSERT_EQ(dense.size(), 1u);
    EXPECT_EQ(dense[0].count, is_symmetric ? 26 : 8);
    EXPECT_EQ(dense[0].rows, is_symmetric ? 70 : 30);
  }
}

TEST(GroupMatmulsTest, EpsilonZeroJoinsNeighbouringPairsOfOneSize) {
  const GroupingOptions options{.epsilon = 0, .bmm_max_rows = kNoLimit};
  EXPECT_THAT(GroupSizes(Mirrored({5, 5, 6}, 9), true, options).groups,
              ElementsAre(MatmulGroup{.first = 0, .count = 4, .rows = 5, .begin = 0},
                          MatmulGroup{.first = 4, .count = 2, .rows = 6, .begin = 20}));
}

TEST(GroupMatmulsTest, NothingAndTheIdentityAlone) {
  for (const Grouping kind : {Grouping::kSeparate, Grouping::kSymmetric, Grouping::kFixed, Grouping::kAdaptive}) {
    const MatmulGrouping nothing = GroupSizes(Mirrored({0, 0}, 0), true, {.grouping = kind});
    EXPECT_TRUE(nothing.groups.empty());
    EXPECT_THAT(nothing.buffer_begin, Each(-1));
    EXPECT_EQ(nothing.num_product_rows, 0);
    const MatmulGrouping alone = GroupSizes({7}, true, {.grouping = kind});
    EXPECT_TRUE(alone.groups.empty());
    EXPECT_THAT(alone.buffer_begin, ElementsAre(0));
    EXPECT_EQ(alone.num_gathered_rows, 0);
    EXPECT_EQ(alone.num_product_rows, 7);
  }
}

TEST(GroupMatmulsTest, AnIdentityInTheMiddleOfAWalkPartsTheGroups) {
  const std::vector<int64_t> begins = BeginsOf({4, 4, 9, 4});
  const MatmulGrouping grouping =
      GroupMatmuls({.num_offsets = 4, .offset_begin = begins.data(), .identity_offset = 2}, {.epsilon = 1});
  EXPECT_THAT(grouping.groups, ElementsAre(MatmulGroup{.first = 0, .count = 2, .rows = 4, .begin = 0},
                                           MatmulGroup{.first = 3, .count = 1, .rows = 4, .begin = 8}));
  EXPECT_THAT(grouping.buffer_begin, ElementsAre(0, 4, 12, 8));
  EXPECT_EQ(grouping.num_product_rows, 21);
}

TEST(GroupMatmulsTest, EveryPairHasOneRowAndPaddingStaysWithinEpsilon) {
  std::mt19937 random(11);
  const auto pick = [&random](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  for (int repetition = 0; repetition < 3000; ++repetition) {
    const bool is_symmetric = pick(0, 1) == 1;
    std::vector<int64_t> sizes(static_cast<size_t>(pick(0, 20)));
    const int64_t largest = pick(1, 60);
    for (int64_t& size : sizes) size = pick(0, 5) == 0 ? 0 : pick(0, largest);
    if (is_symmetric) sizes = Mirrored(sizes, largest);
    const GroupingOptions options{.grouping = static_cast<Grouping>(pick(0, 3)),
                                  .epsilon = static_cast<double>(pick(0, 10)) / 10,
                                  .bmm_max_rows = pick(0, 1) == 0 ? kNoLimit : pick(0, 60)};
    const MatmulGrouping grouping = GroupSizes(sizes, is_symmetric, options);

    std::set<int64_t> rows;
    int64_t num_pairs = 0;
    for (size_t k = 0; k < sizes.size(); ++k) {
      ASSERT_EQ(grouping.buffer_begin[k] >= 0, sizes[k] > 0);
      for (int64_t i = 0; i < sizes[k]; ++i) ASSERT_TRUE(rows.insert(grouping.buffer_begin[k] + i).second);
      num_pairs += sizes[k];
    }
    ASSERT_TRUE(rows.empty() || *rows.rbegin() < grouping.num_product_rows);

    const auto num_offsets = static_cast<int32_t>(sizes.size());
    int32_t next_position = 0;
    int64_t next_row = 0;
    for (const MatmulGroup& group : grouping.groups) {
      ASSERT_GE(group.first, next_position);
      ASSERT_EQ(group.begin, next_row);
      ASSERT_GT(group.rows, 0);
      next_position = group.first + group.count;
      next_row += group.count * group.rows;
      for (int32_t i = 0; i < group.count; ++i) {
        const auto k = static_cast<size_t>(OffsetAt(group.first + i, num_offsets, is_symmetric));
        ASSERT_LE(sizes[k], group.rows);
        if (sizes[k] > 0) {
          ASSERT_EQ(grouping.buffer_begin[k], group.begin + i * group.rows);
        }
        if (options.grouping == Grouping::kAdaptive) {
          ASSERT_GE(static_cast<double>(sizes[k]), (1 - options.epsilon) * static_cast<double>(group.rows) - 1e-9);
          ASSERT_TRUE(!group.is_batched() || group.rows < options.bmm_max_rows);
        }
      }
    }
    ASSERT_LE(next_position, is_symmetric ? num_offsets - 1 : num_offsets);
    ASSERT_EQ(grouping.num_gathered_rows, next_row);
    ASSERT_EQ(grouping.num_product_rows, next_row + (is_symmetric ? largest : 0));
    if (options.grouping == Grouping::kAdaptive) {
      ASSERT_LE((1 - options.epsilon) * static_cast<double>(next_row), static_cast<double>(num_pairs) + 1e-9);
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::matmul_grouping_test
