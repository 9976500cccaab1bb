// Tests the CPU's attention within groups against a naive loop in double, with every vector instruction set.

#include "kernels/rows/attention/group_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/rows/attention/group_attention_dispatch.h"
#include "tests/kernels/rows/attention/group_attention_testing.h"

namespace voxserve::kernels::group_attention_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr GroupTail kTails[] = {GroupTail::kBorrows, GroupTail::kShort};
const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};

class GroupAttentionTest : public testing::TestWithParam<const cpu::Isa*> {
 protected:
  GroupOperands RandomOperands(int64_t rows, int32_t num_heads, int32_t key_channels, int32_t value_channels) {
    const auto random = [&](int32_t channels) {
      return Matrix(rows, int64_t{channels} * num_heads, random_.OneOf(kMargins), &random_);
    };
    return {.queries = random(key_channels),
            .keys = random(key_channels),
            .values = random(value_channels),
            .num_heads = num_heads,
            .scale = 1.5f / std::sqrt(static_cast<float>(key_channels))};
  }

  Matrix Attend(GroupOperands in, const GroupsCase& groups, Margins margins = {.after = 3}, int num_threads = 3) const {
    Matrix out(groups.num_rows(), in.values.channels, margins, nullptr);
    ThreadPool pool(num_threads);
    const auto num_spread = static_cast<int32_t>(groups.spread.size());
    cpu::GroupAttention(*GetParam(),
                        {.groups = {.row_of_place = groups.order.empty() ? nullptr : groups.order.data(),
                                    .sample_begin = groups.begins.data(),
                                    .num_samples = groups.num_samples(),
                                    .size = groups.size,
                                    .tail = groups.tail,
                                    .spread_groups = groups.spread.data(),
                                    .num_spread_groups = &num_spread},
                         .num_heads = in.num_heads,
                         .scale = in.scale,
                         .queries = in.queries.View(),
                         .keys = in.keys.View(),
                         .values = in.values.View(),
                         .out = out.View()},
                        pool);
    EXPECT_TRUE(out.MarginsAreUntouched());
    return out;
  }

  void ExpectNaive(const GroupsCase& groups, int32_t num_heads, int32_t key_channels, int32_t value_channels,
                   int64_t stride = 1) {
    SCOPED_TRACE(testing::Message() << groups.num_rows() << " rows, " << groups.num_samples() << " samples, groups of "
                                    << groups.size << (groups.tail == GroupTail::kShort ? ", short, " : ", borrows, ")
                                    << num_heads << " heads, " << key_channels << " and " << value_channels);
    const GroupOperands in = RandomOperands(groups.num_rows(), num_heads, key_channels, value_channels);
    ExpectGroupAttention(Attend(in, groups, random_.OneOf(kMargins)), in, groups, DType::kFloat32, stride);
  }

  Random random_{1};
};

bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Sizes of samples about which tails differ.
std::vector<int64_t> SampleSizes(int64_t size) { return {0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size}; }

TEST_P(GroupAttentionTest, EqualsTheNaiveLoopForEverySampleSize) {
  for (const int32_t size : {1, 7, 64, 1024, 4096}) {
    for (const int64_t n : SampleSizes(size)) {
      for (const GroupTail tail : kTails) {
        ExpectNaive(GroupsCase::Of({n}, size, tail, &random_), 1, 16, 16, size > 64 ? 61 : 1);
      }
    }
  }
}

TEST_P(GroupAttentionTest, EqualsTheNaiveLoopForEveryNumberOfChannels) {
  for (const int32_t channels : {1, 8, 16, 18, 24, 32, 64, 256}) {
    for (const GroupTail tail : kTails) {
      ExpectNaive(GroupsCase::Of({70, 13}, 33, tail, &random_), 2, channels, channels);
      ExpectNaive(GroupsCase::Of({1024 + 7}, 1024, tail, nullptr), 1, channels, channels, 127);
    }
  }
  ExpectNaive(GroupsCase::Of({70}, 33, GroupTail::kBorrows, &random_), 3, 5, 24);
  ExpectNaive(GroupsCase::Of({70}, 33, GroupTail::kBorrows, &random_), 3, 24, 5);
}

TEST_P(GroupAttentionTest, KeepsGroupsWithinTheirSamples) {
  for (const int32_t size : {1, 7, 64, 100}) {
    for (const GroupTail tail : kTails) {
      std::vector<int64_t> sizes = SampleSizes(size);
      sizes.insert(sizes.begin() + 3, 5 * size + 3);
      sizes.push_back(0);
      ExpectNaive(GroupsCase::Of(sizes, size, tail, &random_), 2, 9, 16);
      ExpectNaive(GroupsCase::Of(sizes, size, tail, nullptr), 2, 9, 16);
    }
  }
  ExpectNaive(GroupsCase::Of({}, 64, GroupTail::kBorrows, nullptr), 2, 16, 16);
  ExpectNaive(GroupsCase::Of({0, 0}, 64, GroupTail::kBorrows, nullptr), 2, 16, 16);
}

TEST_P(GroupAttentionTest, SpreadsGroupsOverWindows) {
  for (const int32_t size : {1, 7, 36, 90, 1024}) {
    std::vector<int64_t> windows = SampleSizes(size);
    windows.push_back(5 * size + 3);
    ExpectNaive(GroupsCase::OfWindows({windows}, size, random_), 2, 24, 24, size > 90 ? 61 : 1);
    ExpectNaive(GroupsCase::OfWindows({windows, {}, {size}, windows}, size, random_), 1, 9, 5, size > 90 ? 61 : 1);
  }
  ExpectNaive(GroupsCase::OfWindows({}, 36, random_), 2, 16, 16);
  // Windows of fewer sites than a group has places, and than a task has queries.
  ExpectNaive(GroupsCase::OfWindows({{1, 1, 2, 3}, {1}, {5, 1}}, 4096, random_), 2, 24, 24);
  ExpectNaive(GroupsCase::OfWindows({{}, {}}, 36, random_), 2, 16, 16);
}

TEST_P(GroupAttentionTest, SpreadGroupsGiveTheSameBytesInAnyOrder) {
  GroupsCase groups = GroupsCase::OfWindows({{100, 36, 37}, {576, 1}}, 36, random_);
  const GroupOperands in = RandomOperands(groups.num_rows(), 2, 24, 24);
  const Matrix first = Attend(in, groups, {});
  std::reverse(groups.spread.begin(), groups.spread.end());
  EXPECT_TRUE(SameBytes(first.values, Attend(in, groups, {}).values));
}

TEST_P(GroupAttentionTest, StaysFiniteWithScoresOfThousands) {
  const GroupsCase groups = GroupsCase::Of({600}, 256, GroupTail::kBorrows, &random_);
  for (const float scale : {300.0f, -3000.0f, 1e6f}) {
    GroupOperands in = RandomOperands(groups.num_rows(), 2, 16, 16);
    in.scale = scale;
    const Matrix out = Attend(in, groups);
    for (int64_t row = 0; row < out.rows; ++row) {
      for (int64_t c = 0; c < out.channels; ++c) ASSERT_LE(std::abs(out.at(row, c)), 1.00001f);
    }
    ExpectGroupAttention(out, in, groups, DType::kFloat32);
  }
}

TEST_P(GroupAttentionTest, GivesTheValueOfALoneRowExactly) {
  const GroupsCase groups = GroupsCase::Of({1, 1, 1}, 64, GroupTail::kBorrows, nullptr);
  const GroupOperands in = RandomOperands(3, 2, 18, 18);
  const Matrix out = Attend(in, groups);
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t c = 0; c < out.channels; ++c) EXPECT_EQ(out.at(row, c), in.values.at(row, c));
  }
}

// Scores are the products of one channel, so that a row's key or query decides its scores.
TEST_P(GroupAttentionTest, HandlesValuesThatAreNotFinite) {
  const GroupsCase groups = GroupsCase::Of({250}, 100, GroupTail::kShort, nullptr);
  const GroupOperands clean = [&] {
    GroupOperands in = RandomOperands(groups.num_rows(), 1, 1, 4);
    in.scale = 1;
    for (int64_t row = 0; row < in.queries.rows; ++row) in.queries.at(row, 0) = 0.5f + static_cast<float>(row % 3);
    return in;
  }();
  const Matrix expected = Attend(clean, groups);
  // Rows of NaN are those of [begin, end); the others have the same bytes as with clean operands.
  const auto expect_nan = [&](const GroupOperands& in, int64_t begin, int64_t end) {
    const Matrix out = Attend(in, groups);
    for (int64_t row = 0; row < out.rows; ++row) {
      for (int64_t c = 0; c < out.channels; ++c) {
        if (row >= begin && row < end) {
          ASSERT_TRUE(std::isnan(out.at(row, c))) << row;
        } else {
          ASSERT_EQ(out.at(row, c), expected.at(row, c)) << row;
        }
      }
    }
  };
  for (const int64_t bad : {0, 99, 100, 249}) {
    const int64_t begin = bad / 100 * 100, end = std::min<int64_t>(begin + 100, 250);
    for (const float value : {kNan, -kNan}) {
      GroupOperands in = clean;
      in.queries.at(bad, 0) = value;
      expect_nan(in, bad, bad + 1);
      in = clean;
      in.keys.at(bad, 0) = value;
      expect_nan(in, begin, end);
    }
    GroupOperands in = clean;
    in.keys.at(bad, 0) = kInfinity;  // all queries are positive
    expect_nan(in, begin, end);
    in = clean;
    for (int64_t row = begin; row < end; ++row) in.keys.at(row, 0) = -kInfinity;
    expect_nan(in, begin, end);
  }
  // Scores of -infinity have weight 0, also those of the first keys.
  GroupOperands in = clean;
  for (int64_t row = 0; row < 99; ++row) in.keys.at(row, 0) = -kInfinity;
  const Matrix out = Attend(in, groups);
  for (int64_t row = 0; row < 100; ++row) {
    for (int64_t c = 0; c < out.channels; ++c) ASSERT_EQ(out.at(row, c), in.values.at(99, c));
  }
}

TEST_P(GroupAttentionTest, GivesASampleTheSameBytesAloneAndInABatch) {
  for (const GroupTail tail : kTails) {
    const GroupsCase batch = GroupsCase::Of({200, 1500, 0, 37}, 512, tail, &random_);
    const GroupOperands in = RandomOperands(batch.num_rows(), 2, 18, 16);
    const Matrix together = Attend(in, batch, {});
    for (size_t s = 0; s + 1 < batch.begins.size(); ++s) {
      const int64_t begin = batch.begins[s], end = batch.begins[s + 1];
      GroupsCase alone{.begins = {0, end - begin}, .order = {}, .size = batch.size, .tail = tail};
      for (int64_t place = begin; place < end; ++place) {
        alone.order.push_back(static_cast<int32_t>(batch.RowOf(place) - begin));
      }
      const auto rows = [&](const Matrix& from) {
        Matrix part(end - begin, from.channels, {}, nullptr);
        for (int64_t i = 0; i < part.rows * part.channels; ++i) {
          part.at(i / part.channels, i % part.channels) = from.at(begin + i / part.channels, i % part.channels);
        }
        return part;
      };
      const Matrix single = Attend({.queries = rows(in.queries),
                                    .keys = rows(in.keys),
                                    .values = rows(in.values),
                                    .num_heads = in.num_heads,
                                    .scale = in.scale},
                                   alone, {});
      EXPECT_TRUE(SameBytes(single.values, rows(together).values)) << "sample " << s;
    }
  }
}

TEST_P(GroupAttentionTest, GivesTheSameBytesWithAnyNumberOfThreads) {
  const GroupsCase groups = GroupsCase::Of({5000, 300, 1, 64}, 1024, GroupTail::kBorrows, &random_);
  const GroupOperands in = RandomOperands(groups.num_rows(), 2, 16, 16);
  EXPECT_TRUE(SameBytes(Attend(in, groups, {}, 1).values, Attend(in, groups, {}, 3).values));
}

std::string IsaName(const testing::TestParamInfo<const cpu::Isa*>& isa) { return isa.param->name; }
INSTANTIATE_TEST_SUITE_P(Isas, GroupAttentionTest, testing::ValuesIn(cpu::SupportedIsas()), IsaName);

TEST(GroupAttention, ChoosesTheWidestInstructionSet) {
  Random random(2);
  const GroupsCase groups = GroupsCase::Of({300}, 128, GroupTail::kBorrows, &random);
  Matrix in(groups.num_rows(), 32, {}, &random);
  const auto run = [&](auto&&... isa) {
    Matrix out(groups.num_rows(), 32, {}, nullptr);
    ThreadPool pool(2);
    cpu::GroupAttention(isa...,
                        {.groups = {.row_of_place = groups.order.data(),
                                    .sample_begin = groups.begins.data(),
                                    .num_samples = 1,
                                    .size = groups.size},
                         .num_heads = 2,
                         .queries = in.View(),
                         .keys = in.View(),
                         .values = in.View(),
                         .out = out.View()},
                        pool);
    return out.values;
  };
  EXPECT_TRUE(SameBytes(run(), run(*cpu::SupportedIsas().front())));
}

}  // namespace
}  // namespace voxserve::kernels::group_attention_test
