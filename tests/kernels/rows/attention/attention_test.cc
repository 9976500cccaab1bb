// Tests attention within samples, and learned rows, against naive loops in double.

#include "kernels/rows/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/rows/repeat_rows.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::attention_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};

// How rows belong to samples: the kernel reads the samples' sizes from the device, or all samples have the same size.
struct Rowing {
  std::vector<int64_t> begins;
  bool is_uniform;

  static Rowing Of(const std::vector<int64_t>& sizes) {
    Rowing rowing{{0}, false};
    for (const int64_t size : sizes) rowing.begins.push_back(rowing.begins.back() + size);
    return rowing;
  }
  static Rowing Same(int64_t samples, int64_t size) {
    Rowing rowing = Of(std::vector<int64_t>(static_cast<size_t>(samples), size));
    rowing.is_uniform = true;
    return rowing;
  }
  int64_t num_samples() const { return static_cast<int64_t>(begins.size()) - 1; }
  int64_t num_rows() const { return begins.back(); }
};

struct Operands {
  Matrix queries, keys, values;
  int32_t num_heads = 1;
  float scale = 1;
};

// Returns [queries, values' channels]. The magnitudes, which set the tolerance, are 8 times those of the summed terms,
// because the weights have the errors of the scores.
Expected NaiveAttention(const Operands& in, const Rowing& of_queries, const Rowing& of_keys) {
  Expected out(of_queries.num_rows(), in.values.channels);
  const int64_t key_channels = in.keys.channels / in.num_heads, value_channels = in.values.channels / in.num_heads;
  for (int64_t s = 0; s < of_queries.num_samples(); ++s) {
    const auto at = static_cast<size_t>(s);
    const int64_t first = of_keys.begins[at], last = of_keys.begins[at + 1];
    for (int64_t i = of_queries.begins[at]; i < of_queries.begins[at + 1]; ++i) {
      for (int64_t head = 0; head < in.num_heads; ++head) {
        std::vector<double> weights;
        for (int64_t j = first; j < last; ++j) {
          double score = 0;
          for (int64_t c = head * key_channels; c < (head + 1) * key_channels; ++c) {
            score += double{in.queries.at(i, c)} * in.keys.at(j, c);
          }
          weights.push_back(score * in.scale);
        }
        if (weights.empty()) continue;
        const double largest = *std::max_element(weights.begin(), weights.end());
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (int64_t j = first; j < last; ++j) {
          const double weight = weights[static_cast<size_t>(j - first)] / sum;
          for (int64_t c = head * value_channels; c < (head + 1) * value_channels; ++c) {
            out.Add(i, c, weight * in.values.at(j, c));
          }
        }
      }
    }
  }
  for (double& magnitude : out.magnitudes) magnitude *= 8;
  return out;
}

class AttentionTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  Operands RandomOperands(const Rowing& of_queries, const Rowing& of_keys, int32_t num_heads, int32_t key_channels,
                          int32_t value_channels) {
    const auto random = [&](int64_t rows, int32_t channels) {
      return Matrix(rows, int64_t{channels} * num_heads, random_.OneOf(kMargins), &random_, dtype());
    };
    return {.queries = random(of_queries.num_rows(), key_channels),
            .keys = random(of_keys.num_rows(), key_channels),
            .values = random(of_keys.num_rows(), value_channels),
            .num_heads = num_heads,
            .scale = 1.5f / std::sqrt(static_cast<float>(key_channels))};
  }

  Matrix Attend(const Operands& in, const Rowing& of_queries, const Rowing& of_keys, DType out_dtype,
                Margins margins = {.after = 3}, int num_threads = 3) const {
    const DeviceMatrix queries(device(), dtype(), in.queries), keys(device(), dtype(), in.keys);
    const DeviceMatrix values(device(), dtype(), in.values);
    const DeviceMatrix out(device(), out_dtype, Matrix(of_queries.num_rows(), in.values.channels, margins, nullptr));
    const DeviceArray<int64_t> query_begins(device(), of_queries.begins), key_begins(device(), of_keys.begins);
    const auto spans = [](const Rowing& rowing, const DeviceArray<int64_t>& begins) {
      return rowing.is_uniform
                 ? SampleSpans{.rows_per_sample = rowing.num_rows() / std::max<int64_t>(rowing.num_samples(), 1)}
                 : SampleSpans{.begin = begins.data()};
    };
    AttentionParams params{.num_samples = static_cast<int32_t>(of_queries.num_samples()),
                           .num_heads = in.num_heads,
                           .scale = in.scale,
                           .query_spans = spans(of_queries, query_begins),
                           .key_spans = spans(of_keys, key_begins),
                           .queries = queries.View(),
                           .keys = keys.View(),
                           .values = values.View(),
                           .out = out.View()};
    if (device() == Device::kCpu) {
      ThreadPool pool(num_threads);
      cpu::Attention(params, pool);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(device(), cuda::AttentionWorkspaceBytes(params));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::Attention(params, TestStream()));
      support::Synchronize();
    }
    return out.ToHost();
  }

  void ExpectNaive(const Rowing& of_queries, const Rowing& of_keys, int32_t num_heads, int32_t key_channels,
                   int32_t value_channels) {
    SCOPED_TRACE(testing::Message() << of_queries.num_samples() << " samples, " << of_queries.num_rows() << " queries, "
                                    << of_keys.num_rows() << " keys, " << num_heads << " heads, " << key_channels
                                    << " and " << value_channels << " channels");
    const Operands in = RandomOperands(of_queries, of_keys, num_heads, key_channels, value_channels);
    const Expected expected = NaiveAttention(in, of_queries, of_keys);
    for (const DType out_dtype : OutDTypes(dtype())) {
      const Matrix out = Attend(in, of_queries, of_keys, out_dtype, random_.OneOf(kMargins));
      ExpectNear(out, expected, RoundsWeights(in, of_queries) ? dtype() : out_dtype);
    }
  }

  // Half-precision features are summed in float32, and the result alone is rounded. But tensor cores multiply weights
  // of the features' type: they compute few queries of narrow heads.
  static bool RoundsWeights(const Operands& in, const Rowing& of_queries) {
    return of_queries.is_uniform && in.keys.channels == in.values.channels && in.keys.channels / in.num_heads <= 32;
  }

  Random random_{1};
};

TEST_P(AttentionTest, EqualsTheNaiveLoop) {
  const std::vector<Rowing> rowings = {Rowing::Of({}), Rowing::Of({0}), Rowing::Of({1}),
                                       Rowing::Of({0, 1, 0, 7, 70, 33, 0}), Rowing::Of({600})};
  for (const Rowing& rows : rowings) {
    for (const int32_t num_heads : {1, 3}) {
      ExpectNaive(rows, rows, num_heads, 8, 5);
      ExpectNaive(rows, rows, num_heads, 3, 66);
      if (HasFatalFailure()) return;
    }
  }
  ExpectNaive(Rowing::Of({40}), Rowing::Of({300}), 2, kMaxAttentionHeadChannels, kMaxAttentionHeadChannels);
  ExpectNaive(Rowing::Of({3, 65}), Rowing::Of({257, 32}), 1, 100, 130);
}

TEST_P(AttentionTest, BetweenSitesAndRowsOfSamples) {
  const Rowing sites = Rowing::Of({0, 40, 1, 513}), tokens = Rowing::Same(4, 8), one = Rowing::Same(4, 1);
  for (const int32_t num_heads : {1, 4}) {
    ExpectNaive(tokens, sites, num_heads, 8, 32);
    ExpectNaive(sites, tokens, num_heads, 8, 32);
    ExpectNaive(tokens, tokens, num_heads, 8, 32);
    ExpectNaive(one, sites, num_heads, 8, 32);
    ExpectNaive(sites, one, num_heads, 8, 32);
    ExpectNaive(Rowing::Same(4, 100), sites, num_heads, 8, 32);
  }
}

// A GPU divides these keys among blocks. The channels of a head select the kernel: up to 32 for tensor cores, and more.
TEST_P(AttentionTest, FewQueriesOverManyKeys) {
  const Rowing sites = Rowing::Of({0, kSplitKeys - 1, 1, kSplitKeys, kSplitKeys + 1, 2 * kSplitKeys + 300});
  for (const int32_t channels : {16, 5, 24, 32, 40}) {
    ExpectNaive(Rowing::Same(6, 3), sites, 2, channels, channels);
    ExpectNaive(Rowing::Same(2, 2), Rowing::Same(2, 3 * kSplitKeys - 7), 2, channels, channels);
    if (HasFatalFailure()) return;
  }
  for (const int64_t num_queries : {1, 40, 300}) ExpectNaive(Rowing::Same(6, num_queries), sites, 1, 4, 4);
  ExpectNaive(Rowing::Same(1, kMaxSplitQueries), Rowing::Same(1, kSplitKeys + 5), 1, 3, 2);
  ExpectNaive(Rowing::Same(1, kMaxSplitQueries + 1), Rowing::Same(1, kSplitKeys + 5), 1, 2, 2);
  ExpectNaive(Rowing::Same(3, 20), Rowing::Of({0, 0, 0}), 2, 16, 16);
}

// The queries of a sample attend to each other: the heads of TransFusion's 200 queries and of Autoware's 500.
TEST_P(AttentionTest, QueriesOverQueries) {
  for (const int64_t num_queries : {1, 7, 200, 500, 1024}) {
    const Rowing queries = Rowing::Same(2, num_queries);
    for (const int32_t channels : {16, 30}) ExpectNaive(queries, queries, 2, channels, channels);
    if (HasFatalFailure()) return;
  }
}

// TransFusion's cells and heads of 16 channels.
TEST_P(AttentionTest, QueriesOverTheCellsOfAnImage) {
  ExpectNaive(Rowing::Same(1, 33), Rowing::Same(1, 180 * 180), 2, 16, 16);
}

// The scores exceed what exp can represent in float32. They ascend, so the kernel must rescale its sums many times.
TEST_P(AttentionTest, LargeScoresThatGrow) {
  const Rowing queries = Rowing::Of({2}), keys = Rowing::Of({700});
  Operands in = RandomOperands(queries, keys, 1, 1, 4);
  in.scale = 1;
  in.queries.at(0, 0) = 1;
  in.queries.at(1, 0) = -1;
  for (int64_t j = 0; j < 700; ++j) in.keys.at(j, 0) = Rounded(dtype(), static_cast<float>(j - 350) * 0.5f);
  ExpectNear(Attend(in, queries, keys, DType::kFloat32), NaiveAttention(in, queries, keys), DType::kFloat32);
}

// Each split has larger scores than the ones before, and the last has small ones again.
TEST_P(AttentionTest, LargeScoresThatGrowFromSplitToSplit) {
  const Rowing queries = Rowing::Same(1, 2), keys = Rowing::Same(1, 4 * kSplitKeys);
  Operands in = RandomOperands(queries, keys, 1, 16, 16);
  in.scale = 1;
  for (int64_t j = 0; j < keys.num_rows(); ++j) {
    const int64_t split = j / kSplitKeys;
    in.keys.at(j, 0) = Rounded(dtype(), split == 3 ? -100.0f : 40.0f * static_cast<float>(split) - 20.0f);
  }
  in.queries.at(0, 0) = 2;
  in.queries.at(1, 0) = -2;
  ExpectNear(Attend(in, queries, keys, DType::kFloat32), NaiveAttention(in, queries, keys), dtype());
}

TEST_P(AttentionTest, NanMakesItsOwnRowsNan) {
  const Rowing rows = Rowing::Of({40, 40});
  Operands in = RandomOperands(rows, rows, 1, 4, 4);
  in.queries.at(3, 1) = std::numeric_limits<float>::quiet_NaN();
  in.keys.at(50, 0) = std::numeric_limits<float>::quiet_NaN();
  const Matrix out = Attend(in, rows, rows, DType::kFloat32);
  for (int64_t row = 0; row < 80; ++row) EXPECT_EQ(std::isnan(out.at(row, 0)), row == 3 || row >= 40) << row;
}

TEST_P(AttentionTest, NanOfASplitMakesItsOwnRowsNan) {
  const Rowing queries = Rowing::Same(2, 40), keys = Rowing::Same(2, 2 * kSplitKeys);
  Operands in = RandomOperands(queries, keys, 1, 16, 16);
  in.queries.at(3, 1) = std::numeric_limits<float>::quiet_NaN();
  in.keys.at(3 * kSplitKeys + 7, 0) = std::numeric_limits<float>::quiet_NaN();
  const Matrix out = Attend(in, queries, keys, DType::kFloat32);
  for (int64_t row = 0; row < 80; ++row) EXPECT_EQ(std::isnan(out.at(row, 0)), row == 3 || row >= 40) << row;
}

TEST_P(AttentionTest, AQueryOfManyKeysDependsOnItsSampleAlone) {
  const Rowing queries = Rowing::Same(3, 33), keys = Rowing::Of({kSplitKeys + 9, 2 * kSplitKeys + 500, 70});
  const Operands in = RandomOperands(queries, keys, 2, 16, 16);
  const Matrix together = Attend(in, queries, keys, DType::kFloat32, {});
  for (int64_t sample = 0; sample < 3; ++sample) {
    const auto at = static_cast<size_t>(sample);
    const auto own = [](const Matrix& matrix, int64_t begin, int64_t end) {
      Matrix part(end - begin, matrix.channels, {}, nullptr);
      for (int64_t i = 0; i < part.rows * part.channels; ++i) {
        part.at(i / part.channels, i % part.channels) = matrix.at(begin + i / part.channels, i % part.channels);
      }
      return part;
    };
    const Operands alone = {.queries = own(in.queries, queries.begins[at], queries.begins[at + 1]),
                            .keys = own(in.keys, keys.begins[at], keys.begins[at + 1]),
                            .values = own(in.values, keys.begins[at], keys.begins[at + 1]),
                            .num_heads = in.num_heads,
                            .scale = in.scale};
    const Rowing own_keys = Rowing::Of({keys.begins[at + 1] - keys.begins[at]});
    const Matrix out = Attend(alone, Rowing::Same(1, 33), own_keys, DType::kFloat32, {});
    EXPECT_EQ(out.values, own(together, queries.begins[at], queries.begins[at + 1]).values) << sample;
  }
}

// A sample's results must have the same bytes alone, in a batch, in every run, and on any number of threads.
TEST_P(AttentionTest, ARowDependsOnItsSampleAlone) {
  const Rowing alone = Rowing::Of({301}), batch = Rowing::Of({77, 0, 301, 5});
  const Operands in = RandomOperands(batch, batch, 2, 20, 24);
  const auto own = [](const Matrix& matrix) {
    Matrix part(301, matrix.channels, {}, nullptr);
    for (int64_t i = 0; i < 301 * matrix.channels; ++i) {
      part.at(i / matrix.channels, i % matrix.channels) = matrix.at(77 + i / matrix.channels, i % matrix.channels);
    }
    return part;
  };
  const Operands in_alone = {.queries = own(in.queries),
                             .keys = own(in.keys),
                             .values = own(in.values),
                             .num_heads = in.num_heads,
                             .scale = in.scale};
  const Matrix expected = Attend(in_alone, alone, alone, DType::kFloat32, {}, 1);
  for (const int num_threads : {1, 4}) {
    const Matrix out = own(Attend(in, batch, batch, DType::kFloat32, {}, num_threads));
    EXPECT_EQ(out.values, expected.values) << num_threads << " threads";
  }
}

TEST_P(AttentionTest, RepeatsLearnedRowsForEverySample) {
  for (const int64_t num_samples : {0, 1, 5}) {
    for (const int64_t channels : {7, 40}) {
      for (const Margins& margins : kMargins) {
        const Matrix rows(3, channels, {}, &random_, dtype());
        const DeviceMatrix device_rows(device(), dtype(), rows);
        const DeviceMatrix out(device(), dtype(), Matrix(3 * num_samples, channels, margins, nullptr));
        const RepeatRowsParams params{.rows = device_rows.View(), .out = out.View()};
        if (device() == Device::kCpu) {
          cpu::RepeatRows(params);
        } else if constexpr (kHasCuda) {
          ExpectCudaSuccess(cuda::RepeatRows(params, TestStream()));
          support::Synchronize();
        }
        const Matrix result = out.ToHost();
        EXPECT_TRUE(result.MarginsAreUntouched());
        for (int64_t row = 0; row < 3 * num_samples; ++row) {
          for (int64_t c = 0; c < channels; ++c) EXPECT_EQ(result.at(row, c), rows.at(row % 3, c));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grounds, AttentionTest, AllGrounds(), GroundName);

}  // namespace
}  // namespace voxserve::kernels::attention_test
