// Compares histograms of values, their errors and the scales that follow from them with the same computed value by
// value.

#include "engine/calibration/value_histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace voxserve::value_histogram_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ValueHistogram HistogramOf(const std::vector<float>& values) {
  kernels::ThreadPool pool(2);
  ValueHistogram histogram;
  histogram.Add(kernels::ConstRows::Packed(values.data(), kernels::DType::kFloat32, static_cast<int64_t>(values.size()),
                                           /*channels=*/1),
                pool);
  return histogram;
}

// Returns the mean of (value - stored value)^2.
double ErrorOf(const std::vector<float>& values, double scale, int largest_integer) {
  double sum = 0;
  for (const float value : values) {
    const double limit = largest_integer;
    const double stored = std::clamp(std::nearbyint(value / scale), -limit, limit) * scale;
    sum += (value - stored) * (value - stored);
  }
  return sum / static_cast<double>(values.size());
}

struct Values {
  std::string name;
  std::function<float(std::mt19937&)> next;
};
void PrintTo(const Values& values, std::ostream* out) { *out << values.name; }

const std::vector<Values>& EveryDistribution() {
  static const std::vector<Values> all = {
      {"Uniform", [](auto& random) { return std::uniform_real_distribution<float>(0, 3)(random); }},
      {"BehindRelu", [](auto& random) { return std::max(0.0f, std::normal_distribution<float>(0, 2)(random)); }},
      {"Normal", [](auto& random) { return std::normal_distribution<float>(0.5f, 20)(random); }},
      {"LongTail", [](auto& random) { return std::lognormal_distribution<float>(-1, 1.5)(random); }},
      {"OneInAThousandIsHuge",
       [](auto& random) {
         const float value = std::uniform_real_distribution<float>(0, 1)(random);
         return random() % 1000 == 0 ? 50 * value : value;
       }},
      {"Tiny", [](auto& random) { return 1e-30f * std::exponential_distribution<float>(1)(random); }},
      {"MostlyZero",
       [](auto& random) { return random() % 10 != 0 ? 0 : std::exponential_distribution<float>(3)(random); }},
  };
  return all;
}

class DistributionTest : public ::testing::TestWithParam<Values> {
 protected:
  std::vector<float> Draw() const {
    std::mt19937 random(7);
    std::vector<float> values(20'000);
    for (float& value : values) value = GetParam().next(random);
    return values;
  }
};

TEST_P(DistributionTest, ErrorsAreThoseOfTheValues) {
  const std::vector<float> values = Draw();
  const ValueHistogram histogram = HistogramOf(values);
  for (const int largest_integer : {127, 255}) {
    for (const double range : {1.0, 0.7, 0.3, 0.05}) {
      const double scale = range * histogram.largest() / largest_integer;
      const double expected = ErrorOf(values, scale, largest_integer);
      EXPECT_NEAR(histogram.SquaredError(scale, largest_integer), expected, 0.02 * expected) << range;
    }
  }
}

TEST_P(DistributionTest, NoOtherScaleHasANoticeablySmallerError) {
  const std::vector<float> values = Draw();
  const ValueHistogram histogram = HistogramOf(values);
  for (const int largest_integer : {127, 255}) {
    const double found = ErrorOf(values, double{LeastErrorScale(histogram, largest_integer)}, largest_integer);
    double least = found;
    for (double range = histogram.largest(); range > histogram.largest() / 1000; range *= 0.96) {
      least = std::min(least, ErrorOf(values, range / largest_integer, largest_integer));
    }
    EXPECT_LE(found, 1.02 * least);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DistributionTest, ::testing::ValuesIn(EveryDistribution()),
                         [](const auto& test) { return test.param.name; });

TEST(ValueHistogramTest, TheLargestValueIsTheRangeWhereClippingLoses) {
  const std::vector<float> values = {0, 0.25f, 0.5f, 0.75f, 1};
  EXPECT_FLOAT_EQ(LeastErrorScale(HistogramOf(values), 255), 1.0f / 255);
}

TEST(ValueHistogramTest, ARareLargeValueIsClipped) {
  std::vector<float> values(1'000'000, 0);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000) / 1000;
  values.back() = 8;
  EXPECT_LT(LeastErrorScale(HistogramOf(values), 255), 4.0f / 255);
}

TEST(ValueHistogramTest, ColumnsBesideTheValueAreNotCounted) {
  // Three rows of two channels, in a matrix of five columns that are NaN elsewhere.
  std::vector<float> matrix(15, kNan);
  for (size_t row = 0; row < 3; ++row) {
    matrix[row * 5 + 1] = static_cast<float>(row);
    matrix[row * 5 + 2] = -2.5f;
  }
  kernels::ThreadPool pool(2);
  ValueHistogram histogram;
  histogram.Add({.data = matrix.data() + 1, .channels = 2, .pitch = 5, .capacity = 3}, pool);
  EXPECT_EQ(histogram.num_values(), 6);
  EXPECT_EQ(histogram.num_not_finite(), 0);
  EXPECT_EQ(histogram.largest(), 2.5f);
  EXPECT_TRUE(histogram.has_negative());
}

TEST(ValueHistogramTest, ScansAddUp) {
  const std::vector<float> one = {1, 2, 3}, other = {0.5f, 7};
  kernels::ThreadPool pool(1);
  ValueHistogram histogram;
  for (const auto& values : {one, other}) {
    histogram.Add(
        kernels::ConstRows::Packed(values.data(), kernels::DType::kFloat32, static_cast<int64_t>(values.size()), 1),
        pool);
  }
  const ValueHistogram together = HistogramOf({1, 2, 3, 0.5f, 7});
  EXPECT_EQ(histogram.num_values(), 5);
  EXPECT_EQ(histogram.largest(), 7);
  EXPECT_FALSE(histogram.has_negative());
  EXPECT_EQ(histogram.SquaredError(0.1, 20), together.SquaredError(0.1, 20));
}

TEST(ValueHistogramTest, SignsAndZerosDoNotMatter) {
  EXPECT_FALSE(HistogramOf({0, -0.0f, 1}).has_negative());
  EXPECT_EQ(HistogramOf({0, -0.0f}).largest(), 0);
  EXPECT_EQ(HistogramOf({-1, 3, -0.2f}).SquaredError(0.01, 127), HistogramOf({1, -3, 0.2f}).SquaredError(0.01, 127));
}

TEST(ValueHistogramTest, ValuesThatAreNotFiniteAreCountedApart) {
  const ValueHistogram histogram = HistogramOf({1, kNan, -kInfinity, kInfinity, -kNan, 2});
  EXPECT_EQ(histogram.num_not_finite(), 4);
  EXPECT_EQ(histogram.num_values(), 6);
  EXPECT_EQ(histogram.largest(), 2);
  EXPECT_EQ(HistogramOf({kNan}).SquaredError(1, 255), 0);
}

TEST(ValueHistogramTest, TheLargestAndSmallestFloatsHaveScales) {
  constexpr float kMost = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::denorm_min();
  EXPECT_TRUE(std::isfinite(HistogramOf({kMost, 1}).SquaredError(double{kMost} / 255, 255)));
  EXPECT_FLOAT_EQ(LeastErrorScale(HistogramOf({kMost}), 255), kMost / 255);
  EXPECT_TRUE(std::isnormal(LeastErrorScale(HistogramOf({kLeast}), 127)));
}

TEST(ValueHistogramTest, NoRowsAddNothing) {
  const ValueHistogram histogram = HistogramOf({});
  EXPECT_EQ(histogram.num_values(), 0);
  EXPECT_EQ(histogram.largest(), 0);
}

}  // namespace
}  // namespace voxserve::value_histogram_test
