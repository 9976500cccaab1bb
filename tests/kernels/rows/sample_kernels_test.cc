// Tests kernels that treat each sample of a batch separately against naive loops in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/sample_begins.h"
#include "kernels/rows/sample_reduce.h"
#include "kernels/rows/scale_shift.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::sample_kernels_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};

std::vector<int64_t> BeginsOf(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> begins = {0};
  for (const int64_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

class SampleKernelTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  // Returns [samples, channels]. centre may be null.
  Matrix Reduce(const std::vector<int64_t>& begins, const Matrix& in, PoolReduce reduce,
                const std::vector<float>* centre, DType out_dtype) const {
    const auto samples = static_cast<int32_t>(begins.size() - 1);
    const auto channels = static_cast<int32_t>(in.channels);
    const DeviceMatrix device_in(device(), dtype(), in);
    const DeviceMatrix out(device(), out_dtype, Matrix(samples, channels, {.after = 3}, nullptr));
    const DeviceArray<int64_t> sample_begin(device(), begins);
    const DeviceArray<float> device_centre(device(), centre == nullptr ? std::vector<float>() : *centre);
    SampleReduceParams params{.sample_begin = sample_begin.data(),
                              .reduce = reduce,
                              .in = device_in.View(),
                              .centre = centre == nullptr ? nullptr : device_centre.data(),
                              .out = out.View()};
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::SampleReduce(params, pool);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(device(), cuda::SampleReduceWorkspaceBytes(samples, channels));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::SampleReduce(params, TestStream()));
      support::Synchronize();
    }
    return out.ToHost();
  }
};

TEST_P(SampleKernelTest, ReduceEqualsTheNaiveLoop) {
  Random random(1);
  const std::vector<std::vector<int64_t>> batches = {{}, {0}, {1}, {3000}, {0, 1, 0, 7, 1025, 300, 0}};
  for (const std::vector<int64_t>& sizes : batches) {
    const std::vector<int64_t> begins = BeginsOf(sizes);
    for (const int32_t channels : {1, 3, 40, 300}) {
      const Matrix in(begins.back(), channels, random.OneOf(kMargins), &random, dtype());
      const std::vector<float> centre = random.Floats(static_cast<int64_t>(sizes.size()) * channels);
      for (const PoolReduce reduce : {PoolReduce::kMax, PoolReduce::kAverage, PoolReduce::kSum}) {
        for (const bool has_centre : {false, true}) {
          for (const DType out_dtype : OutDTypes(dtype())) {
            const Matrix out = Reduce(begins, in, reduce, has_centre ? &centre : nullptr, out_dtype);
            EXPECT_TRUE(out.MarginsAreUntouched());
            for (size_t s = 0; s < sizes.size(); ++s) {
              for (int32_t c = 0; c < channels; ++c) {
                double sum = 0, largest = -std::numeric_limits<double>::infinity();
                for (int64_t row = begins[s]; row < begins[s + 1]; ++row) {
                  double value = in.at(row, c);
                  if (has_centre) value = std::pow(value - centre[s * static_cast<size_t>(channels) + c], 2);
                  sum += value;
                  largest = std::max(largest, value);
                }
                const auto count = static_cast<double>(std::max<int64_t>(sizes[s], 1));
                double expected = reduce == PoolReduce::kSum ? sum : sum / count;
                if (reduce == PoolReduce::kMax) expected = sizes[s] == 0 ? 0 : largest;
                // Features of every type are summed in float32, and the result is rounded once.
                const double magnitude = reduce == PoolReduce::kSum ? 4 * count : 4;
                const double tolerance = Tolerance(DType::kFloat32, magnitude) +
                                         (out_dtype == DType::kFloat32 ? 0.0 : Tolerance(dtype(), std::abs(expected)));
                ASSERT_NEAR(out.at(static_cast<int64_t>(s), c), expected, tolerance)
                    << "reduce " << static_cast<int>(reduce) << ", sample " << s << " of " << sizes.size()
                    << ", channel " << c << " of " << channels << ", centre " << has_centre;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(SampleKernelTest, LargestKeepsNanAndMinusInfinity) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  Matrix in(3, 2, {}, nullptr);
  in.values = {1, -inf, nan, -inf, 2, -inf};
  const Matrix out = Reduce({0, 3}, in, PoolReduce::kMax, nullptr, dtype());
  EXPECT_TRUE(std::isnan(out.at(0, 0)));
  EXPECT_EQ(out.at(0, 1), -inf);
}

// A sample's results must have the same bytes alone and in a batch.
TEST_P(SampleKernelTest, ReductionOfASampleDoesNotDependOnItsBatchMates) {
  Random random(2);
  const Matrix alone(1700, 12, {}, &random, dtype());
  Matrix batch(1700 + 333, 12, {}, &random, dtype());
  std::copy(alone.values.begin(), alone.values.end(), batch.values.begin() + 333 * 12);
  const Matrix expected = Reduce({0, 1700}, alone, PoolReduce::kSum, nullptr, DType::kFloat32);
  const Matrix out = Reduce({0, 333, 333, 2033}, batch, PoolReduce::kSum, nullptr, DType::kFloat32);
  for (int64_t c = 0; c < 12; ++c) EXPECT_EQ(out.at(2, c), expected.at(0, c));
}

TEST_P(SampleKernelTest, GroupAverageGivesMeansAndScales) {
  Random random(3);
  constexpr float kEpsilon = 0.01f;
  for (const int32_t num_groups : {1, 2, 3, 6}) {
    for (const bool is_scale : {false, true}) {
      for (const bool has_weight : {false, true}) {
        constexpr int32_t kSamples = 50, kChannels = 6;
        std::vector<float> values = random.Floats(kSamples * kChannels);
        for (float& value : values) value = std::abs(value);
        const std::vector<float> weight = random.Floats(kChannels);
        const DeviceArray<float> device_values(device(), values), device_weight(device(), weight);
        const GroupAverageParams params{.num_samples = kSamples,
                                        .channels = kChannels,
                                        .num_groups = num_groups,
                                        .is_scale = is_scale,
                                        .weight = has_weight ? device_weight.data() : nullptr,
                                        .epsilon = kEpsilon,
                                        .values = device_values.data()};
        if (device() == Device::kCpu) {
          cpu::GroupAverage(params);
        } else if constexpr (kHasCuda) {
          ExpectCudaSuccess(cuda::GroupAverage(params, TestStream()));
        }
        const std::vector<float> result = device_values.ToHost();
        const int32_t group_channels = kChannels / num_groups;
        for (int32_t i = 0; i < kSamples * kChannels; ++i) {
          const auto first = values.begin() + i / group_channels * group_channels;
          const double mean = std::accumulate(first, first + group_channels, 0.0) / group_channels;
          const double factor = has_weight ? weight[static_cast<size_t>(i % kChannels)] : 1.0;
          const double expected = is_scale ? factor / std::sqrt(mean + kEpsilon) : mean;
          ASSERT_NEAR(result[static_cast<size_t>(i)], expected, 1e-5 * std::max(1.0, std::abs(expected))) << i;
        }
      }
    }
  }
}

TEST_P(SampleKernelTest, ScaleShiftEqualsTheNaiveLoop) {
  Random random(4);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{0}, {5}, {0, 3, 0, 1, 2500, 0}}) {
    const std::vector<int64_t> begins = BeginsOf(sizes);
    const auto samples = static_cast<int64_t>(sizes.size());
    const DeviceArray<int64_t> sample_begin(device(), begins);
    for (const int32_t channels : {1, 8, 12}) {
      for (int choice = 0; choice < 16; ++choice) {
        const bool has_in = (choice & 1) != 0, has_centre = (choice & 2) != 0, has_scale = (choice & 4) != 0;
        const bool has_shift = (choice & 8) != 0;
        const DType factor_dtype = random.Chance(0.5) ? dtype() : DType::kFloat32;
        const DType out_dtype = random.OneOf(OutDTypes(dtype()));
        const EpilogueCase epilogue = random.OneOf(EpilogueCases());
        const Margins margins = random.OneOf(kMargins);
        const Matrix in(begins.back(), channels, margins, &random, dtype());
        const Matrix residual(begins.back(), channels, {}, &random, dtype());
        const Matrix centre(samples, channels, margins, &random, factor_dtype);
        const Matrix scale(samples, channels, margins, &random, factor_dtype);
        const Matrix shift(samples, channels, margins, &random, factor_dtype);
        const std::vector<float> bias = random.Floats(channels);
        Expected expected(begins.back(), channels);
        for (int64_t s = 0; s < samples; ++s) {
          for (int64_t row = begins[static_cast<size_t>(s)]; row < begins[static_cast<size_t>(s) + 1]; ++row) {
            for (int32_t c = 0; c < channels; ++c) {
              const double factor = has_scale ? scale.at(s, c) : 1.0;
              if (has_in) expected.Add(row, c, in.at(row, c) * factor);
              if (has_centre) expected.Add(row, c, -centre.at(s, c) * factor);
              if (has_shift) expected.Add(row, c, shift.at(s, c));
            }
          }
        }
        expected.Finish(epilogue.bias ? &bias : nullptr, epilogue.residual ? &residual : nullptr, epilogue.relu);

        const DeviceMatrix device_in(device(), dtype(), in), device_residual(device(), dtype(), residual);
        const DeviceMatrix device_centre(device(), factor_dtype, centre), device_scale(device(), factor_dtype, scale);
        const DeviceMatrix device_shift(device(), factor_dtype, shift);
        const DeviceValues device_bias(device(), DType::kFloat32, bias);
        const DeviceMatrix out(device(), out_dtype, Matrix(begins.back(), channels, margins, nullptr));
        const SampleScaleShiftParams params{.num_samples = static_cast<int32_t>(samples),
                                            .sample_begin = sample_begin.data(),
                                            .in = has_in ? device_in.View() : ConstRows{.dtype = dtype()},
                                            .centre = has_centre ? device_centre.View() : ConstRows{},
                                            .scale = has_scale ? device_scale.View() : ConstRows{},
                                            .shift = has_shift ? device_shift.View() : ConstRows{},
                                            .out = out.View(),
                                            .epilogue = epilogue.With(device_bias.data(), device_residual.View())};
        if (device() == Device::kCpu) {
          ThreadPool pool(3);
          cpu::SampleScaleShift(params, pool);
        } else if constexpr (kHasCuda) {
          ExpectCudaSuccess(cuda::SampleScaleShift(params, TestStream()));
        }
        SCOPED_TRACE(testing::Message() << "choice " << choice << ", channels " << channels);
        ExpectNear(out.ToHost(), expected, dtype());
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grounds, SampleKernelTest, AllGrounds(), GroundName);

TEST(SampleBeginsCudaTest, AreTheFirstKeysOfTheSamples) {
  SKIP_WITHOUT(Device::kCuda);
  if constexpr (kHasCuda) {
    const std::vector<int32_t> sample_of = {1, 1, 1, 2, 5, 5};
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < sample_of.size(); ++i) {
      keys.push_back(MortonKey<3>::Pack(sample_of[i], {static_cast<int32_t>(i), 0, 0, 0}));
    }
    std::sort(keys.begin(), keys.end());
    for (const int64_t num_keys : {int64_t{0}, int64_t{6}}) {
      const DeviceArray<uint64_t> device_keys(Device::kCuda, keys);
      const DeviceArray<int64_t> device_num_keys(Device::kCuda, std::vector<int64_t>{num_keys});
      const DeviceArray<int64_t> begins(Device::kCuda, 8);
      ExpectCudaSuccess(cuda::SampleBegins({.dimension = 3,
                                            .num_samples = 7,
                                            .keys = device_keys.data(),
                                            .num_keys = device_num_keys.data(),
                                            .sample_begin = begins.data()},
                                           TestStream()));
      EXPECT_EQ(begins.ToHost(),
                num_keys == 0 ? std::vector<int64_t>(8, 0) : (std::vector<int64_t>{0, 0, 3, 4, 4, 4, 6, 6}));
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::sample_kernels_test
