// Tests kernels that treat each sample of a batch separately against naive loops in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
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

// Returns the begins of samples that SampleBegins finds on each level. sample_of[level]: the keys' samples, ascending.
// Memory has more keys than a level, which are those of its first sample.
template <int kDimension>
std::vector<std::vector<int64_t>> RunSampleBegins(int32_t num_samples,
                                                  const std::vector<std::vector<int32_t>>& sample_of) {
  std::vector<std::unique_ptr<DeviceArray<uint64_t>>> keys;
  std::vector<std::unique_ptr<DeviceArray<int64_t>>> counts, begins;
  std::vector<SampleBeginsParams> levels;
  for (const std::vector<int32_t>& samples : sample_of) {
    constexpr size_t kMoreKeys = 70;
    std::vector<uint64_t> of_level;
    for (size_t i = 0; i < samples.size() + kMoreKeys; ++i) {
      const int32_t sample = i < samples.size() ? samples[i] : 0;
      of_level.push_back(MortonKey<kDimension>::Pack(sample, {static_cast<int32_t>(i % 500), 0, 0, 0}));
    }
    std::sort(of_level.begin(), of_level.begin() + static_cast<int64_t>(samples.size()));
    const std::vector<int64_t> num_keys = {static_cast<int64_t>(samples.size())};
    const std::vector<int64_t> unset(static_cast<size_t>(num_samples) + 2, -1);
    keys.push_back(std::make_unique<DeviceArray<uint64_t>>(Device::kCuda, of_level));
    counts.push_back(std::make_unique<DeviceArray<int64_t>>(Device::kCuda, num_keys));
    begins.push_back(std::make_unique<DeviceArray<int64_t>>(Device::kCuda, unset));
    levels.push_back({.dimension = kDimension,
                      .num_samples = num_samples,
                      .keys = keys.back()->data(),
                      .num_keys = counts.back()->data(),
                      .sample_begin = begins.back()->data()});
  }
  if constexpr (kHasCuda) ExpectCudaSuccess(cuda::SampleBegins(levels, TestStream()));
  std::vector<std::vector<int64_t>> made;
  for (const auto& of_level : begins) {
    made.push_back(of_level->ToHost());
    EXPECT_EQ(made.back().back(), -1) << "written behind the last begin";
    made.back().pop_back();
  }
  return made;
}

TEST(SampleBeginsCudaTest, AreTheFirstKeysOfTheSamples) {
  SKIP_WITHOUT(Device::kCuda);
  EXPECT_EQ(RunSampleBegins<3>(7, {{1, 1, 1, 2, 5, 5}, {}}),
            (std::vector<std::vector<int64_t>>{{0, 0, 3, 4, 4, 4, 6, 6}, std::vector<int64_t>(8, 0)}));
}

// A warp searches in rounds of 32 keys, and a launch has at most 16 levels.
TEST(SampleBeginsCudaTest, OfManySamplesAndLevelsAreWhatALoopFinds) {
  SKIP_WITHOUT(Device::kCuda);
  std::mt19937 random(7);
  for (const int32_t num_samples : {1, 2, 7, 8, 31, 32, 33, 300}) {
    std::vector<std::vector<int32_t>> sample_of;
    std::vector<std::vector<int64_t>> expected;
    for (const size_t num_keys : {0, 1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 1056, 1057, 32768, 32769, 90000}) {
      std::vector<int32_t>& samples = sample_of.emplace_back();
      for (size_t i = 0; i < num_keys; ++i) {
        const auto sample = static_cast<int32_t>(random() % static_cast<uint32_t>(num_samples));
        samples.push_back(num_keys % 2 == 0 ? sample : sample / 3 * 3);  // with empty samples
      }
      std::sort(samples.begin(), samples.end());
      std::vector<int64_t>& begins = expected.emplace_back();
      for (int32_t sample = 0; sample <= num_samples; ++sample) {
        begins.push_back(std::lower_bound(samples.begin(), samples.end(), sample) - samples.begin());
      }
    }
    SCOPED_TRACE(testing::Message() << num_samples << " samples");
    EXPECT_EQ(RunSampleBegins<1>(num_samples, sample_of), expected);
    EXPECT_EQ(RunSampleBegins<2>(num_samples, sample_of), expected);
    EXPECT_EQ(RunSampleBegins<3>(num_samples, sample_of), expected);
    EXPECT_EQ(RunSampleBegins<4>(num_samples, sample_of), expected);
  }
}

#if VOXSERVE_CUDA
// The host refuses these levels, so they need no GPU.
TEST(SampleBeginsRefusalCudaTest, LevelsThatDifferAreRefused) {
  const SampleBeginsParams level{.dimension = 3, .num_samples = 2};
  SampleBeginsParams flat = level, smaller = level;
  flat.dimension = 2;
  smaller.num_samples = 1;
  EXPECT_EQ(cuda::SampleBegins(std::vector{level, flat}, TestStream()), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SampleBegins(std::vector{level, smaller}, TestStream()), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SampleBegins({}, TestStream()), cudaSuccess);
}
#endif

}  // namespace
}  // namespace voxserve::kernels::sample_kernels_test
