// Compares the queries that SelectPeaks chooses, and the rows that GatherQueries reads at them, with naive loops by
// their definitions.

#include "kernels/boxes/select_peaks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/boxes/gather_queries.h"
#include "tests/kernels/boxes/detection_testing.h"

namespace voxserve::kernels::select_peaks_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;
using testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr PeakBorder kBorders[] = {PeakBorder::kDrop, PeakBorder::kKeep, PeakBorder::kPad};

struct Query {
  int32_t row, column, channel;
  double score;
};

// The logits of all samples: [samples, rows, columns, classes].
struct Image {
  int32_t rows, columns, classes;
  std::vector<float> logits;

  int32_t num_cells() const { return rows * columns; }
  int32_t num_pairs() const { return num_cells() * classes; }
  int32_t num_samples() const { return static_cast<int32_t>(logits.size()) / num_pairs(); }
  float At(int32_t sample, int32_t row, int32_t column, int32_t channel) const {
    const int64_t cell = (int64_t{sample} * rows + row) * columns + column;
    return logits[static_cast<size_t>(cell * classes + channel)];
  }
  bool Contains(int32_t row, int32_t column) const { return row >= 0 && row < rows && column >= 0 && column < columns; }
  Image Sample(int32_t sample) const {
    const auto begin = logits.begin() + int64_t{sample} * num_pairs();
    return {rows, columns, classes, {begin, begin + num_pairs()}};
  }
};

bool IsPeak(const Image& image, const SelectPeaksParams& params, int32_t sample, int32_t row, int32_t column,
            int32_t channel) {
  const float logit = image.At(sample, row, column, channel);
  if (!std::isfinite(logit)) return false;
  if (params.classes_without_test[static_cast<size_t>(channel)]) return true;
  const int32_t radius = (params.peak_kernel - 1) / 2;
  bool is_largest = true, is_within = true;
  for (int32_t y = row - radius; y <= row + radius; ++y) {
    for (int32_t x = column - radius; x <= column + radius; ++x) {
      is_within = is_within && image.Contains(y, x);
      if (!image.Contains(y, x)) continue;
      const float other = image.At(sample, y, x, channel);
      if (std::isfinite(other) && other > logit) is_largest = false;
    }
  }
  if (is_within || params.border == PeakBorder::kPad) return is_largest;
  return params.border == PeakBorder::kKeep;
}

// Ranks all pairs of a sample and returns the k first.
std::vector<Query> NaiveQueries(const Image& image, const SelectPeaksParams& params, int32_t sample) {
  // (rank of its kind, -logit of a peak, class, cell), the logit
  std::vector<std::pair<std::tuple<int, float, int32_t, int32_t>, float>> pairs;
  for (int32_t row = 0; row < image.rows; ++row) {
    for (int32_t column = 0; column < image.columns; ++column) {
      for (int32_t channel = 0; channel < image.classes; ++channel) {
        const float logit = image.At(sample, row, column, channel);
        const bool is_peak = IsPeak(image, params, sample, row, column, channel);
        const int rank = is_peak ? 0 : std::isfinite(logit) ? 1 : 2;
        pairs.push_back({{rank, is_peak ? -logit : 0.0f, channel, row * image.columns + column}, logit});
      }
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Query> queries;
  for (int32_t i = 0; i < params.k; ++i) {
    const auto& [order, logit] = pairs[static_cast<size_t>(i)];
    const auto [rank, unused, channel, cell] = order;
    queries.push_back(
        {cell / image.columns, cell % image.columns, channel, rank == 0 ? 1 / (1 + std::exp(-double{logit})) : 0.0});
  }
  return queries;
}

class SelectPeaksTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  // Returns the rows of the selection.
  std::vector<float> Select(const Image& image, SelectPeaksParams params) {
    DeviceImages images(device(), dtype());
    const DeviceArray<uint32_t> counts(device(), std::vector<uint32_t>(static_cast<size_t>(image.num_samples()), 0));
    params.num_samples = image.num_samples();
    params.dtype = dtype();
    params.num_rows = image.rows;
    params.num_columns = image.columns;
    params.num_classes = image.classes;
    params.scores = images.Add(image.logits, image.classes);
    params.num_not_finite = counts.data();
    const DeviceArray<float> selection(device(),
                                       static_cast<size_t>(params.num_samples * params.k) * kSelectionColumns);
    params.selection = selection.data();
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::SelectPeaks(params, pool);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(device(), cuda::SelectPeaksWorkspaceBytes(params));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::SelectPeaks(params, TestStream()));
      support::Synchronize();
    }
    num_not_finite_ = counts.ToHost();
    return selection.ToHost();
  }

  void ExpectNaive(const Image& image, const SelectPeaksParams& params) {
    SCOPED_TRACE(testing::Message() << image.num_samples() << " samples of " << image.rows << " x " << image.columns
                                    << " cells, " << image.classes << " classes, window " << params.peak_kernel
                                    << ", border " << static_cast<int>(params.border) << ", k " << params.k);
    const std::vector<float> rows = Select(image, params);
    for (int32_t sample = 0; sample < image.num_samples(); ++sample) {
      const std::vector<Query> expected = NaiveQueries(image, params, sample);
      for (int32_t i = 0; i < params.k; ++i) {
        const float* const row = rows.data() + (int64_t{sample} * params.k + i) * kSelectionColumns;
        const Query& query = expected[static_cast<size_t>(i)];
        ASSERT_EQ(row[kSelectedRow], static_cast<float>(query.row)) << "sample " << sample << " query " << i;
        ASSERT_EQ(row[kSelectedColumn], static_cast<float>(query.column)) << "sample " << sample << " query " << i;
        ASSERT_EQ(row[kSelectedClass], static_cast<float>(query.channel)) << "sample " << sample << " query " << i;
        ASSERT_NEAR(row[kSelectedScore], query.score, 1e-6) << "sample " << sample << " query " << i;
        ASSERT_EQ(row[kSelectedScore] == 0, query.score == 0) << "sample " << sample << " query " << i;
      }
      uint32_t num_not_finite = 0;
      for (const float logit : image.Sample(sample).logits) num_not_finite += std::isfinite(logit) ? 0 : 1;
      EXPECT_EQ(num_not_finite_[static_cast<size_t>(sample)], num_not_finite);
    }
  }

  // Returns logits from -8 to 8. With `steps`, each is a multiple of 1 / steps, so that many are equal.
  Image RandomImage(int32_t samples, int32_t rows, int32_t columns, int32_t classes, float steps = 0) {
    Image image{rows, columns, classes, {}};
    image.logits = random_.Floats(int64_t{samples} * image.num_pairs(), dtype());
    for (float& logit : image.logits) {
      logit = Rounded(dtype(), steps > 0 ? std::round(8 * logit * steps) / steps : 8 * logit);
    }
    return image;
  }

  Random random_{3};
  std::vector<uint32_t> num_not_finite_;  // of the last selection, by sample
};
INSTANTIATE_TEST_SUITE_P(Grounds, SelectPeaksTest, AllGrounds(), GroundName);

TEST_P(SelectPeaksTest, EqualsTheNaiveLoopWithEachBorder) {
  for (const PeakBorder border : kBorders) {
    for (const int32_t kernel : {1, 3, 5}) {
      for (const float steps : {0.0f, 1.0f}) {
        ExpectNaive(RandomImage(2, 20, 33, 3, steps), {.peak_kernel = kernel, .border = border, .k = 60});
        ExpectNaive(RandomImage(3, 2, 5, 2, steps), {.peak_kernel = kernel, .border = border, .k = 11});
        ExpectNaive(RandomImage(2, 1, 1, 1, steps), {.peak_kernel = kernel, .border = border, .k = 1});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// An image of TransFusion's size with the classes of nuScenes: two of them have no peak test.
TEST_P(SelectPeaksTest, ClassesWithoutATest) {
  const Image image = RandomImage(2, 180, 180, 10);
  for (const PeakBorder border : kBorders) {
    SelectPeaksParams params{.peak_kernel = 3, .border = border, .k = 200};
    params.classes_without_test[8] = params.classes_without_test[9] = true;
    ExpectNaive(image, params);
    if (HasFatalFailure()) return;
  }
}

TEST_P(SelectPeaksTest, TheLargestNumberOfQueries) {
  ExpectNaive(RandomImage(2, 70, 65, 4), {.peak_kernel = 3, .border = PeakBorder::kPad, .k = kMaxQueries});
  // More candidates than a GPU's block sorts at once: all logits are peaks, and most are equal.
  ExpectNaive(RandomImage(2, 70, 65, 4), {.peak_kernel = 1, .k = kMaxQueries});
  ExpectNaive(RandomImage(2, 70, 65, 4, 0.125f), {.peak_kernel = 1, .k = kMaxQueries});
  ExpectNaive(RandomImage(1, 32, 32, 1), {.peak_kernel = 3, .border = PeakBorder::kDrop, .k = kMaxQueries});
}

// On a GPU, many blocks find the candidates of such an image. They are spread out, or all in one bin of its histogram,
// or few are in higher bins.
TEST_P(SelectPeaksTest, AnImageOfManyCells) {
  const SelectPeaksParams params{.peak_kernel = 1, .k = 500};
  Image image = RandomImage(2, 301, 203, 5);
  ExpectNaive(image, params);
  for (float& logit : image.logits) logit = Rounded(dtype(), -2.3f + logit / 4096);
  ExpectNaive(image, params);
  for (size_t i = 0; i < image.logits.size(); i += 1009) image.logits[i] = Rounded(dtype(), image.logits[i] + 3);
  ExpectNaive(image, params);
  ExpectNaive(image, {.peak_kernel = 3, .border = PeakBorder::kPad, .k = kMaxQueries});
}

// Equal logits everywhere: every cell that may be a peak is one, and the lowest (class, cell) come first.
TEST_P(SelectPeaksTest, TiesAtAllCells) {
  Image image{100, 90, 2, std::vector<float>(2 * 100 * 90 * 2, -1.5f)};
  for (const PeakBorder border : kBorders) {
    ExpectNaive(image, {.peak_kernel = 3, .border = border, .k = 1000});
    const std::vector<float> rows = Select(image, {.peak_kernel = 3, .border = border, .k = 2});
    const bool is_inside = border == PeakBorder::kDrop;
    const float first = is_inside ? 1 : 0;
    EXPECT_THAT(std::vector<float>(rows.begin(), rows.begin() + 3), ElementsAre(first, first, 0));
    EXPECT_THAT(std::vector<float>(rows.begin() + 4, rows.begin() + 7), ElementsAre(first, first + 1, 0));
  }
}

// A descending slope has one peak at its top, in the middle of a row. The other queries are no peaks.
TEST_P(SelectPeaksTest, FewerPeaksThanQueries) {
  Image image{5, 7, 2, {}};
  for (int32_t row = 0; row < 5; ++row) {
    for (int32_t column = 0; column < 7; ++column) {
      const auto distance = static_cast<float>(std::abs(row - 2) + std::abs(column - 3));
      image.logits.insert(image.logits.end(), {2 - distance, -1 - distance});
    }
  }
  for (const PeakBorder border : kBorders) ExpectNaive(image, {.peak_kernel = 3, .border = border, .k = 70});
  const std::vector<float> rows = Select(image, {.peak_kernel = 3, .border = PeakBorder::kPad, .k = 4});
  EXPECT_NEAR(rows[3], 1 / (1 + std::exp(-2.0)), 1e-6);
  EXPECT_NEAR(rows[7], 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_THAT(std::vector<float>(rows.begin(), rows.begin() + 3), ElementsAre(2, 3, 0));
  EXPECT_THAT(std::vector<float>(rows.begin() + 4, rows.begin() + 7), ElementsAre(2, 3, 1));
  EXPECT_THAT(std::vector<float>(rows.begin() + 8, rows.end()), ElementsAre(0, 0, 0, 0, 0, 1, 0, 0));
}

// Such logits are no peaks, hide no peak, and are the last to fill a selection.
TEST_P(SelectPeaksTest, LogitsThatAreNotFinite) {
  for (const PeakBorder border : kBorders) {
    Image image = RandomImage(3, 9, 8, 2);
    for (size_t i = 0; i < image.logits.size(); ++i) {
      const bool is_second = i / static_cast<size_t>(image.num_pairs()) == 1;  // that sample has no finite logit
      if (is_second || random_.Chance(0.4)) image.logits[i] = random_.OneOf(std::vector{kNan, kInfinity, -kInfinity});
    }
    for (const int32_t k : {5, 144}) ExpectNaive(image, {.peak_kernel = 3, .border = border, .k = k});
    SelectPeaksParams params{.peak_kernel = 3, .border = border, .k = 100};
    params.classes_without_test[1] = true;
    ExpectNaive(image, params);
  }
  // The NaN in the middle is larger than nothing: both of its neighbours are peaks, and it is none.
  const Image row{1, 3, 1, {1, kNan, 2}};
  const std::vector<float> selected = Select(row, {.peak_kernel = 3, .border = PeakBorder::kPad, .k = 3});
  EXPECT_THAT((std::vector<float>{selected[1], selected[5], selected[9]}), ElementsAre(2, 0, 1));
  EXPECT_GT(selected[7], 0.7f);
  EXPECT_EQ(selected[11], 0.0f);
}

// The sigmoids of these logits are all 1 in float32, and all 0 at the other end. The logits decide.
TEST_P(SelectPeaksTest, LogitsDecideWhereSigmoidsAreEqual) {
  if (dtype() == DType::kBfloat16) GTEST_SKIP() << "bfloat16 has no such neighbours";
  const Image image{1, 6, 1, {30, 30.25f, -200, 30.125f, -199.5f, -200.5f}};
  const std::vector<float> rows = Select(image, {.peak_kernel = 1, .k = 6});
  std::vector<float> columns;
  for (size_t i = 0; i < 6; ++i) columns.push_back(rows[i * kSelectionColumns + kSelectedColumn]);
  EXPECT_THAT(columns, ElementsAre(1, 3, 0, 4, 2, 5));
}

TEST_P(SelectPeaksTest, ASamplesQueriesDependOnItAlone) {
  const Image image = RandomImage(5, 40, 50, 3, 4);
  const SelectPeaksParams params{.peak_kernel = 3, .border = PeakBorder::kDrop, .k = 300};
  const std::vector<float> rows = Select(image, params);
  for (int32_t sample = 0; sample < 5; ++sample) {
    const std::vector<float> alone = Select(image.Sample(sample), params);
    const auto begin = rows.begin() + static_cast<int64_t>(alone.size()) * sample;
    EXPECT_EQ(alone, std::vector<float>(begin, begin + static_cast<int64_t>(alone.size()))) << sample;
  }
}

TEST_P(SelectPeaksTest, NoSamplesAreNoWork) {
  EXPECT_TRUE(Select(Image{3, 3, 1, {}}, {.peak_kernel = 3, .k = 4}).empty());
}

TEST_P(SelectPeaksTest, GathersWhatQueriesHave) {
  constexpr int32_t kSamples = 3, kRows = 12, kColumns = 17, kClasses = 4, k = 40;
  const std::vector<float> selection =
      Select(RandomImage(kSamples, kRows, kColumns, kClasses), {.peak_kernel = 3, .border = PeakBorder::kKeep, .k = k});
  const DeviceArray<float> on_device(device(), selection);
  for (const int64_t channels : {1, 3, 8, 64}) {
    for (const Margins& margins : {Margins{}, Margins{.before = 8, .after = 8}, Margins{.before = 1, .after = 2}}) {
      const Matrix cells(kSamples * kRows * kColumns, channels, margins, &random_, dtype());
      const DeviceMatrix cells_on_device(device(), dtype(), cells);
      for (const DType out_dtype : OutDTypes(dtype())) {
        for (const GatherOf of : {GatherOf::kFeatures, GatherOf::kClass, GatherOf::kScore, GatherOf::kPosition}) {
          const int64_t width = of == GatherOf::kFeatures ? channels : of == GatherOf::kPosition ? 2 : 1;
          const DeviceMatrix out(device(), out_dtype, Matrix(kSamples * k, width, margins, nullptr));
          const GatherQueriesParams params{.of = of,
                                           .k = k,
                                           .selection = on_device.data(),
                                           .cells = cells_on_device.View(),
                                           .num_rows = kRows,
                                           .num_columns = kColumns,
                                           .out = out.View()};
          if (device() == Device::kCpu) {
            cpu::GatherQueries(params);
          } else if constexpr (kHasCuda) {
            ExpectCudaSuccess(cuda::GatherQueries(params, TestStream()));
            support::Synchronize();
          }
          const Matrix result = out.ToHost();
          EXPECT_TRUE(result.MarginsAreUntouched());
          for (int64_t row = 0; row < kSamples * k; ++row) {
            const float* const query = selection.data() + row * kSelectionColumns;
            const auto cell = static_cast<int64_t>(query[kSelectedRow] * kColumns + query[kSelectedColumn]);
            for (int64_t c = 0; c < width; ++c) {
              const float expected = of == GatherOf::kFeatures ? cells.at(row / k * kRows * kColumns + cell, c)
                                     : of == GatherOf::kClass  ? query[kSelectedClass]
                                     : of == GatherOf::kScore  ? query[kSelectedScore]
                                     : c == 0                  ? query[kSelectedColumn] + 0.5f
                                                               : query[kSelectedRow] + 0.5f;
              ASSERT_EQ(result.at(row, c), Rounded(out_dtype, expected)) << row << " " << c;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::select_peaks_test
