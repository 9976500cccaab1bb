// Tests the GPU's attention within groups against a naive loop in double, in every type of features.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/rows/attention/attention.h"
#include "kernels/rows/attention/group_attention.h"
#include "tests/kernels/rows/attention/group_attention_testing.h"

namespace voxserve::kernels::group_attention_cuda_test {
namespace {

using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr GroupTail kTails[] = {GroupTail::kBorrows, GroupTail::kShort};
// Rows of whole vectors of 16 bytes, and others.
const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};

class GroupAttentionCudaTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  GroupOperands RandomOperands(int64_t rows, int32_t num_heads, int32_t key_channels, int32_t value_channels) {
    const auto random = [&](int32_t channels) {
      return Matrix(rows, int64_t{channels} * num_heads, random_.OneOf(kMargins), &random_, GetParam());
    };
    return {.queries = random(key_channels),
            .keys = random(key_channels),
            .values = random(value_channels),
            .num_heads = num_heads,
            .scale = 1.5f / std::sqrt(static_cast<float>(key_channels))};
  }

  // The rows have room for some more than there are; the GPU alone knows how many there are.
  Matrix Attend(const GroupOperands& in, const GroupsCase& groups, DType out_dtype, Margins margins = {.after = 3}) {
    constexpr int64_t kRoom = 37;
    const auto with_room = [&](const Matrix& from) {
      Matrix wide = from;
      wide.rows += kRoom;
      wide.values.resize(wide.values.size() + static_cast<size_t>(kRoom * from.pitch), kNan);
      return wide;
    };
    const DeviceMatrix queries(Device::kCuda, GetParam(), with_room(in.queries));
    const DeviceMatrix keys(Device::kCuda, GetParam(), with_room(in.keys));
    const DeviceMatrix values(Device::kCuda, GetParam(), with_room(in.values));
    const Matrix unwritten(groups.num_rows() + kRoom, in.values.channels, margins, nullptr);
    const DeviceMatrix out(Device::kCuda, out_dtype, unwritten);
    const DeviceArray<int64_t> begins(Device::kCuda, groups.begins);
    const DeviceArray<int32_t> order(Device::kCuda, groups.order);
    // The list has room for more groups than there are.
    std::vector<SpreadGroup> list = groups.spread;
    list.resize(list.size() + 5, {.begin = -1, .own_begin = -1, .end = -1});
    const DeviceArray<SpreadGroup> spread(Device::kCuda, list);
    const DeviceArray<int32_t> num_spread(Device::kCuda,
                                          std::vector<int32_t>{static_cast<int32_t>(groups.spread.size())});
    const auto counted = [&](auto rows) {
      rows.num_rows = begins.data() + groups.num_samples();
      return rows;
    };
    ExpectCudaSuccess(cuda::GroupAttention({.groups = {.row_of_place = groups.order.empty() ? nullptr : order.data(),
                                                       .sample_begin = begins.data(),
                                                       .num_samples = groups.num_samples(),
                                                       .size = groups.size,
                                                       .tail = groups.tail,
                                                       .spread_groups = spread.data(),
                                                       .num_spread_groups = num_spread.data(),
                                                       .max_spread_groups = static_cast<int64_t>(list.size())},
                                            .num_heads = in.num_heads,
                                            .scale = in.scale,
                                            .queries = counted(queries.View()),
                                            .keys = counted(keys.View()),
                                            .values = counted(values.View()),
                                            .out = counted(out.View())},
                                           TestStream()));
    support::Synchronize();
    Matrix result = out.ToHost();
    EXPECT_TRUE(result.MarginsAreUntouched());
    for (int64_t row = groups.num_rows(); row < result.rows; ++row) {
      for (int64_t c = 0; c < result.channels; ++c) {
        const float value = result.at(row, c), before = unwritten.at(row, c);
        EXPECT_EQ(std::memcmp(&value, &before, sizeof(value)), 0) << "row " << row << " was written";
      }
    }
    result.rows = groups.num_rows();
    return result;
  }

  void ExpectNaive(const GroupsCase& groups, int32_t num_heads, int32_t key_channels, int32_t value_channels,
                   int64_t stride = 1) {
    SCOPED_TRACE(testing::Message() << groups.num_rows() << " rows, " << groups.num_samples() << " samples, groups of "
                                    << groups.size << (groups.tail == GroupTail::kShort ? ", short, " : ", borrows, ")
                                    << num_heads << " heads, " << key_channels << " and " << value_channels);
    const GroupOperands in = RandomOperands(groups.num_rows(), num_heads, key_channels, value_channels);
    for (const DType out_dtype : OutDTypes(GetParam())) {
      ExpectGroupAttention(Attend(in, groups, out_dtype, random_.OneOf(kMargins)), in, groups, GetParam(), stride);
    }
  }

  Random random_{1};
};
INSTANTIATE_TEST_SUITE_P(Types, GroupAttentionCudaTest,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBfloat16),
                         [](const auto& type) { return std::string(NameOf(type.param)); });

std::vector<int64_t> SampleSizes(int64_t size) { return {0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size}; }

TEST_P(GroupAttentionCudaTest, EqualsTheNaiveLoopForEverySampleSize) {
  for (const int32_t size : {1, 7, 64, 128, 129, 512, 1024, 1600, 1700, 2000, 4096}) {
    for (const int64_t n : SampleSizes(size)) {
      for (const GroupTail tail : kTails) {
        ExpectNaive(GroupsCase::Of({n}, size, tail, &random_), 2, 16, 16, size > 64 ? 61 : 1);
      }
    }
  }
}

TEST_P(GroupAttentionCudaTest, EqualsTheNaiveLoopForEveryNumberOfChannels) {
  for (const int32_t channels : {1, 4, 8, 12, 15, 16, 18, 24, 32, 40, 64, 100, 256}) {
    for (const GroupTail tail : kTails) {
      ExpectNaive(GroupsCase::Of({70, 13}, 33, tail, &random_), 2, channels, channels);
      ExpectNaive(GroupsCase::Of({1024 + 7}, 1024, tail, nullptr), 1, channels, channels, 127);
    }
  }
  for (const int32_t num_heads : {1, 3, 4, 5, 8, 32}) {
    ExpectNaive(GroupsCase::Of({300}, 128, GroupTail::kBorrows, &random_), num_heads, 16, 16, 17);
    ExpectNaive(GroupsCase::Of({300}, 128, GroupTail::kBorrows, &random_), num_heads, 18, 18, 17);
    ExpectNaive(GroupsCase::Of({500}, 200, GroupTail::kShort, &random_), num_heads, 16, 16, 17);
  }
  ExpectNaive(GroupsCase::Of({70}, 33, GroupTail::kBorrows, &random_), 3, 5, 24);
  ExpectNaive(GroupsCase::Of({70}, 33, GroupTail::kBorrows, &random_), 3, 24, 5);
}

// Heads of 16 channels have a kernel of warp groups, and those of 17 to 24 channels another one. Groups of up to 128
// places have others, and so have groups that do not fit shared memory twice.
TEST_P(GroupAttentionCudaTest, EqualsTheNaiveLoopForHeadsOf17To24Channels) {
  for (const int32_t channels : {17, 18, 20, 22, 23, 24}) {
    for (const int32_t size : {128, 129, 192, 255, 320, 600, 1024, 1088, 1100}) {
      for (const int64_t n : {size - 1, size, size + 65, 2 * size + 3}) {
        for (const GroupTail tail : kTails) {
          ExpectNaive(GroupsCase::Of({n, 5}, size, tail, &random_), 2, channels, channels, 61);
        }
      }
    }
  }
  ExpectNaive(GroupsCase::Of({14400}, 1024, GroupTail::kBorrows, &random_), 14, 18, 18, 509);
}

// A short run of these kernels, for the sanitizer.
TEST_P(GroupAttentionCudaTest, AFewHeadsOf17To24Channels) {
  for (const int32_t channels : {18, 23, 24}) {
    ExpectNaive(GroupsCase::Of({193}, 192, GroupTail::kBorrows, &random_), 2, channels, channels, 7);
  }
}

// Returns the operands with other margins around their rows.
GroupOperands WithMargins(const GroupOperands& in, Margins margins) {
  const auto copy = [&](const Matrix& from) {
    Matrix to(from.rows, from.channels, margins, nullptr);
    for (int64_t i = 0; i < from.rows * from.channels; ++i) {
      to.at(i / from.channels, i % from.channels) = from.at(i / from.channels, i % from.channels);
    }
    return to;
  };
  return {.queries = copy(in.queries),
          .keys = copy(in.keys),
          .values = copy(in.values),
          .num_heads = in.num_heads,
          .scale = in.scale};
}

// Rows that are aligned to vectors of 16 bytes or to 4 bytes are read differently from others.
TEST_P(GroupAttentionCudaTest, AlignmentChangesNoByte) {
  for (const int32_t size : {100, 129, 300, 1024}) {
    const GroupsCase groups = GroupsCase::Of({1100, 70}, size, GroupTail::kShort, &random_);
    for (const int32_t channels : {8, 12, 16, 18, 20, 24}) {
      SCOPED_TRACE(testing::Message() << "groups of " << size << ", " << channels << " channels");
      const GroupOperands in = RandomOperands(groups.num_rows(), 3, channels, channels);
      const Matrix aligned = Attend(WithMargins(in, {}), groups, DType::kFloat32);
      ExpectGroupAttention(aligned, in, groups, GetParam(), /*stride=*/61);
      for (const Margins margins : {Margins{.before = 1, .after = 2}, {.before = 2, .after = 4}}) {
        const Matrix unaligned = Attend(WithMargins(in, margins), groups, DType::kFloat32);
        for (int64_t row = 0; row < aligned.rows; ++row) {
          for (int64_t c = 0; c < aligned.channels; ++c) ASSERT_EQ(aligned.at(row, c), unaligned.at(row, c)) << row;
        }
      }
    }
  }
}

TEST_P(GroupAttentionCudaTest, KeepsGroupsWithinTheirSamples) {
  for (const int32_t size : {1, 7, 64, 100, 128, 200}) {
    for (const GroupTail tail : kTails) {
      std::vector<int64_t> sizes = SampleSizes(size);
      sizes.insert(sizes.begin() + 3, 5 * size + 3);
      sizes.push_back(0);
      ExpectNaive(GroupsCase::Of(sizes, size, tail, &random_), 2, 9, 16);
      ExpectNaive(GroupsCase::Of(sizes, size, tail, nullptr), 2, 16, 16);
    }
  }
  ExpectNaive(GroupsCase::Of({0, 0}, 64, GroupTail::kBorrows, nullptr), 2, 16, 16);
}

TEST_P(GroupAttentionCudaTest, SpreadsGroupsOverWindows) {
  for (const int32_t size : {1, 7, 36, 90, 150, 1024}) {
    std::vector<int64_t> windows = SampleSizes(size);
    windows.push_back(5 * size + 3);
    for (const int32_t channels : {16, 24, 40}) {
      const int64_t stride = size > 90 ? 61 : 1;
      ExpectNaive(GroupsCase::OfWindows({windows}, size, random_), 2, channels, channels, stride);
      ExpectNaive(GroupsCase::OfWindows({windows, {}, {size}, windows}, size, random_), 3, channels, channels, stride);
    }
  }
  ExpectNaive(GroupsCase::OfWindows({{}, {}}, 36, random_), 2, 16, 16);
  // Larger groups than shared memory holds, most of whose parts have no rows.
  ExpectNaive(GroupsCase::OfWindows({{5000, 3, 4096}, {1}}, 4096, random_), 1, 24, 24, 127);
}

TEST_P(GroupAttentionCudaTest, SpreadGroupsGiveTheSameBytesInAnyOrder) {
  std::vector<int64_t> windows;
  for (int64_t n = 1; n < 150; ++n) windows.push_back(n);
  for (const auto& [channels, size] : {std::pair{24, 36}, {40, 36}, {16, 150}, {18, 150}, {24, 150}}) {
    GroupsCase groups = GroupsCase::OfWindows({windows, {576, 1}}, size, random_);
    const GroupOperands in = RandomOperands(groups.num_rows(), 8, channels, channels);
    const Matrix first = Attend(in, groups, DType::kFloat32);
    std::reverse(groups.spread.begin(), groups.spread.end());
    const Matrix second = Attend(in, groups, DType::kFloat32);
    for (int64_t row = 0; row < first.rows; ++row) {
      for (int64_t c = 0; c < first.channels; ++c) ASSERT_EQ(first.at(row, c), second.at(row, c)) << row;
    }
  }
}

TEST_P(GroupAttentionCudaTest, LargeScan) {
  for (const int32_t num_heads : {2, 8}) {
    ExpectNaive(GroupsCase::Of({100000}, 1024, GroupTail::kBorrows, &random_), num_heads, 16, 16, 509);
  }
}

TEST_P(GroupAttentionCudaTest, StaysFiniteWithScoresOfThousands) {
  const GroupsCase groups = GroupsCase::Of({2500}, 1024, GroupTail::kBorrows, &random_);
  for (const int32_t channels : {16, 18, 64}) {
    for (const float scale : {300.0f, -3000.0f}) {
      GroupOperands in = RandomOperands(groups.num_rows(), 2, channels, channels);
      in.scale = scale;
      const Matrix out = Attend(in, groups, DType::kFloat32);
      for (int64_t row = 0; row < out.rows; ++row) {
        for (int64_t c = 0; c < out.channels; ++c) ASSERT_LE(std::abs(out.at(row, c)), 1.01f) << row;
      }
    }
  }
}

// The references of a row are too low at first.
TEST_P(GroupAttentionCudaTest, EqualsTheNaiveLoopIfLaterKeysHaveMuchHigherScores) {
  for (const int32_t size : {512, 1024}) {
    const GroupsCase groups = GroupsCase::Of({2500}, size, GroupTail::kBorrows, &random_);
    for (const int32_t channels : {16, 18, 24}) {
      GroupOperands in = RandomOperands(groups.num_rows(), 2, channels, channels);
      in.scale = 25;
      ExpectGroupAttention(Attend(in, groups, DType::kFloat32), in, groups, GetParam(), /*stride=*/61);
    }
  }
}

TEST_P(GroupAttentionCudaTest, EqualsTheNaiveLoopForEveryScale) {
  const GroupsCase groups = GroupsCase::Of({450}, 300, GroupTail::kShort, &random_);
  for (const float scale : {0.0f, -0.25f}) {
    for (const int32_t channels : {16, 18, 24}) {
      GroupOperands in = RandomOperands(groups.num_rows(), 2, channels, channels);
      in.scale = scale;
      ExpectGroupAttention(Attend(in, groups, DType::kFloat32), in, groups, GetParam(), /*stride=*/17);
    }
  }
}

// The keys that pad a group have scores of 0, far above all others.
TEST_P(GroupAttentionCudaTest, PaddingDoesNotCountBesideVeryLowScores) {
  for (const auto& [channels, size] : {std::pair{16, 100}, {16, 300}, {16, 1024}, {18, 300}, {18, 1024}, {24, 1024}}) {
    const GroupsCase groups = GroupsCase::Of({1024 + 77}, size, GroupTail::kShort, nullptr);
    GroupOperands in = RandomOperands(groups.num_rows(), 2, channels, channels);
    for (int64_t row = 0; row < groups.num_rows(); ++row) {
      for (int64_t c = 0; c < in.keys.channels; ++c) {
        in.queries.at(row, c) = std::abs(in.queries.at(row, c));
        in.keys.at(row, c) = -std::abs(in.keys.at(row, c));
      }
    }
    in.scale = 200;
    ExpectGroupAttention(Attend(in, groups, DType::kFloat32), in, groups, GetParam(), /*stride=*/61);
  }
}

TEST_P(GroupAttentionCudaTest, ValuesThatAreNotFiniteStayInTheirGroup) {
  for (const auto& [channels, size] :
       {std::pair{16, 100}, {16, 140}, {40, 100}, {16, 1024}, {18, 140}, {18, 1024}, {24, 140}, {24, 1024}}) {
    const GroupsCase groups = GroupsCase::Of({250}, size, GroupTail::kShort, nullptr);
    const GroupOperands clean = RandomOperands(groups.num_rows(), 1, channels, channels);
    const Matrix expected = Attend(clean, groups, DType::kFloat32);
    for (const int64_t bad : {0, 99, 100, 249}) {
      const int64_t begin = bad / size * size, end = std::min<int64_t>(begin + size, 250);
      for (const bool is_key : {false, true}) {
        for (const float value : {kNan, kInfinity}) {
          if (!is_key && value == kInfinity) continue;  // its scores have both signs
          GroupOperands in = clean;
          Matrix& where = is_key ? in.keys : in.queries;
          for (int64_t c = 0; c < channels; ++c) where.at(bad, c) = value;
          const Matrix out = Attend(in, groups, DType::kFloat32);
          for (int64_t row = 0; row < out.rows; ++row) {
            const bool is_bad = is_key ? row >= begin && row < end : row == bad;
            for (int64_t c = 0; c < out.channels; ++c) {
              if (is_bad) {
                // A query whose products with an infinite key have both signs has a score of NaN.
                ASSERT_TRUE(std::isnan(out.at(row, c))) << row << " " << bad << " " << is_key << value;
              } else if (row >= begin && row < end) {
                // Queries of one tile share the bound of their scores, which decides how exponentials are computed.
                ASSERT_NEAR(out.at(row, c), expected.at(row, c), 1e-3) << row << " " << bad << " " << is_key << value;
              } else {
                ASSERT_EQ(out.at(row, c), expected.at(row, c)) << row << " " << bad << " " << is_key << value;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(GroupAttentionCudaTest, AValueThatIsNotANumberStaysInItsChannel) {
  for (const int32_t channels : {16, 18, 23, 24}) {
    for (const int32_t size : {100, 140, 1024}) {
      const GroupsCase groups = GroupsCase::Of({250}, size, GroupTail::kShort, nullptr);
      const GroupOperands clean = RandomOperands(groups.num_rows(), 1, channels, channels);
      const Matrix expected = Attend(clean, groups, DType::kFloat32);
      for (const int64_t bad_channel : {0, 15, channels - 1}) {
        GroupOperands in = clean;
        in.values.at(50, bad_channel) = kNan;
        const Matrix out = Attend(in, groups, DType::kFloat32);
        for (int64_t row = 0; row < out.rows; ++row) {
          for (int64_t c = 0; c < out.channels; ++c) {
            if (row < size && c == bad_channel) {
              ASSERT_TRUE(std::isnan(out.at(row, c))) << row << " " << c;
            } else {
              ASSERT_EQ(out.at(row, c), expected.at(row, c)) << row << " " << c;
            }
          }
        }
      }
    }
  }
}

TEST_P(GroupAttentionCudaTest, GivesASampleTheSameBytesAloneAndInABatch) {
  // Groups of 4,096 places fit shared memory if the rows of a batch are few, and do not otherwise.
  for (const auto& [channels, size] : {std::pair{16, 512},
                                       {18, 512},
                                       {40, 512},
                                       {24, 36},
                                       {16, 100},
                                       {16, 200},
                                       {16, 1024},
                                       {16, 1600},
                                       {16, 1700},
                                       {16, 2000},
                                       {17, 300},
                                       {18, 200},
                                       {18, 1024},
                                       {20, 1024},
                                       {24, 200},
                                       {24, 1024},
                                       {32, 4096}}) {
    for (const GroupTail tail : kTails) {
      const GroupsCase batch = GroupsCase::Of({200, 2500, 0, 37}, size, tail, &random_);
      const GroupOperands in = RandomOperands(batch.num_rows(), 2, channels, channels);
      const Matrix together = Attend(in, batch, GetParam(), {});
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
                                     alone, GetParam(), {});
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t c = 0; c < together.channels; ++c) {
            ASSERT_EQ(single.at(row - begin, c), together.at(row, c)) << "sample " << s << ", row " << row - begin;
          }
        }
      }
    }
  }
}

TEST_P(GroupAttentionCudaTest, RefusesHeadsThatAreTooWide) {
  const DeviceArray<int64_t> begins(Device::kCuda, std::vector<int64_t>{0, 1});
  const DeviceMatrix rows(Device::kCuda, GetParam(), Matrix(1, kMaxAttentionHeadChannels + 1, {}, &random_));
  EXPECT_EQ(cuda::GroupAttention({.groups = {.sample_begin = begins.data(), .num_samples = 1},
                                  .queries = rows.View(),
                                  .keys = rows.View(),
                                  .values = rows.View(),
                                  .out = rows.View()},
                                 TestStream()),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace voxserve::kernels::group_attention_cuda_test
