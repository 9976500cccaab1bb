// Tests output coordinates on the GPU against stored results and against the CPU's results. The CPU's own tests compare
// those with loops over all sites. Results are compared as sets of sites, since the GPU orders rows differently.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/coordinates/output_coordinates.h"
#include "tests/kernels/coordinates/conv_cases.h"
#include "tests/kernels/coordinates/device_sites.h"
#include "tests/kernels/coordinates/geometry_testing.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::output_coordinates_cuda_test {
namespace {

using fixtures::AllConvCases;
using fixtures::ConvCase;
using fixtures::Level;
using fixtures::RandomSites;
using fixtures::RunOutputCoordinates;
using fixtures::Sorted;
using fixtures::ToMorton;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Returns RandomSites that are moved to [0, extent) on each axis.
std::vector<uint64_t> SitesFromZero(int32_t dimension, int32_t num_samples, size_t count, int32_t extent) {
  const CoordinateKey layout(dimension);
  std::vector<uint64_t> keys = RandomSites(dimension, num_samples, count, extent);
  for (uint64_t& key : keys) {
    Axes site = layout.Unpack(key);
    for (int axis = 0; axis < dimension; ++axis) site[axis] += extent / 2;
    key = layout.Pack(layout.Sample(key), site);
  }
  return keys;
}

class OutputCoordinatesCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  // Returns the output sites' MortonKeys, in the order of the rows.
  std::vector<uint64_t> Run(OutputCoordinatesParams params, const Level& in, std::vector<int64_t>* beyond_limits) {
    params.in_keys = in.keys.data();
    params.num_in = in.capacity;
    params.device_num_in = in.count.data();
    params.out_capacity = OutputCoordinatesCapacity(params);
    const DeviceArray<uint64_t> out(Device::kCuda, static_cast<size_t>(params.out_capacity));
    const DeviceArray<int64_t> num_out(Device::kCuda, 1);
    const DeviceArray<int64_t> beyond(Device::kCuda, static_cast<size_t>(params.num_samples));
    const DeviceArray<char> workspace(Device::kCuda, cuda::OutputCoordinatesWorkspaceBytes(params));
    params.out_keys = out.data();
    params.num_out = num_out.data();
    params.num_beyond_limits = beyond.data();
    params.first_in_rows = nullptr;
    params.workspace = workspace.data();
    ExpectCudaSuccess(cuda::OutputCoordinates(params, TestStream()));
    *beyond_limits = beyond.ToHost();
    std::vector<uint64_t> keys = out.ToHost();
    const auto count = static_cast<size_t>(num_out.ToHost()[0]);
    EXPECT_LE(count, keys.size());
    keys.resize(std::min(count, keys.size()));
    return keys;
  }

  // Expects the same output sites and the same counts beyond the limits from the GPU and the CPU. in: CoordinateKeys.
  // box: if given, sites outside [0, box) are expected of the CPU alone.
  void ExpectWhatTheCpuMakes(OutputCoordinatesParams params, const std::vector<uint64_t>& in,
                             const std::optional<Axes>& box = std::nullopt) {
    const CoordinateKey layout(params.geometry.dimension);
    const Level level(ToMorton(in, layout.dimension()));
    std::vector<int64_t> beyond, cpu_beyond;
    const std::vector<uint64_t> out = Run(params, level, &beyond);
    ThreadPool pool(2);
    const std::vector<uint64_t> sorted = Sorted(in);
    params.in_keys = sorted.data();
    params.num_in = static_cast<int64_t>(sorted.size());
    std::vector<uint64_t> expected = RunOutputCoordinates(params, pool, &cpu_beyond);
    if (box) {
      std::erase_if(expected, [&](uint64_t key) {
        const Axes site = layout.Unpack(key);
        return std::any_of(site.begin(), site.begin() + layout.dimension(), [](int32_t c) { return c < 0; }) ||
               !std::equal(site.begin(), site.begin() + layout.dimension(), box->begin(), std::less<>());
      });
      EXPECT_THAT(beyond, Each(0));
    }
    EXPECT_EQ(out, ToMorton(expected, layout.dimension()));
    EXPECT_EQ(beyond, cpu_beyond);
  }
};

TEST_F(OutputCoordinatesCudaTest, AgreeWithTheDefinition) {
  for (const ConvCase& c : AllConvCases()) {
    if (c.is_submanifold) continue;
    SCOPED_TRACE(c.name);
    std::vector<int64_t> beyond_limits;
    const Level in(ToMorton(c.in_keys, c.geometry.dimension));
    EXPECT_EQ(Run(c.OutputParams(), in, &beyond_limits), ToMorton(c.out_keys, c.geometry.dimension));
    EXPECT_THAT(beyond_limits, Each(0));
  }
}

TEST_F(OutputCoordinatesCudaTest, OfALargeCloudAreWhatTheCpuMakes) {
  const std::vector<uint64_t> in = RandomSites(3, 3, 20000, 60);
  std::vector<ConvGeometry> geometries;
  for (const int32_t stride : {1, 2, 3, 4, 8}) {
    geometries.push_back({.kernel_size = {stride, stride, stride, 1}, .stride = {stride, stride, stride, 1}});
  }
  geometries.push_back({.kernel_size = {1, 2, 4, 1}, .stride = {1, 2, 4, 1}});
  geometries.push_back({.kernel_size = {3, 3, 3, 1}, .stride = {2, 2, 2, 1}, .padding = {1, 1, 1, 0}});
  geometries.push_back(
      {.kernel_size = {3, 2, 5, 1}, .stride = {1, 3, 2, 1}, .dilation = {2, 1, 2, 1}, .padding = {2, 0, 4, 0}});
  for (const ConvGeometry& geometry : geometries) {
    SCOPED_TRACE(::testing::Message() << geometry.kernel_size[0] << " " << geometry.stride[0]);
    for (const CoordinateRule rule : {CoordinateRule::kFloor, CoordinateRule::kPadded, CoordinateRule::kExpand,
                                      CoordinateRule::kTransposed, CoordinateRule::kGenerative}) {
      SCOPED_TRACE(static_cast<int>(rule));
      OutputCoordinatesParams params;
      params.rule = rule;
      params.geometry = geometry;
      params.num_samples = 3;
      params.out_shape = {13, 9, 20, 0};
      ExpectWhatTheCpuMakes(params, in);
      params.has_lower = params.has_upper = true;
      params.lower = {-20, -7, 0, 0};
      params.upper = {25, 5, 11, 0};
      ExpectWhatTheCpuMakes(params, in);
    }
  }
}

// Small shapes have a bit for every cell, larger ones a list of the touched words, and the candidates of the largest
// are sorted.
TEST_F(OutputCoordinatesCudaTest, OfEverySpatialShapeAreWhatTheCpuMakes) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    for (const Axes& shape : {Axes{1, 1, 1, 1}, Axes{2, 1, 3, 1}, Axes{33, 4, 1, 2}, Axes{64, 65, 31, 3},
                              Axes{700, 5, 129, 9}, Axes{4000, 4000, 4000, 500}}) {
      SCOPED_TRACE(::testing::Message() << dimension << " axes, " << shape[0] << " " << shape[1] << " " << shape[2]);
      OutputCoordinatesParams params;
      params.rule = CoordinateRule::kPadded;
      params.geometry = {
          .dimension = dimension, .kernel_size = {3, 3, 3, 3}, .stride = {2, 1, 2, 2}, .padding = {1, 0, 1, 1}};
      params.num_samples = 3;
      std::copy_n(shape.begin(), dimension, params.out_shape.begin());
      ExpectWhatTheCpuMakes(params, RandomSites(dimension, 3, 600, dimension == 1 ? 2000 : 70));
      params.num_samples = 40;  // most of them are empty
      ExpectWhatTheCpuMakes(params, RandomSites(dimension, 2, 12, 9));
      params.rule = CoordinateRule::kTransposed;
      ExpectWhatTheCpuMakes(params, RandomSites(dimension, 3, 60, 40));
    }
  }
}

// If the host knows how far the inputs reach, kExpand uses the bitmap too. The CPU ignores in_extent. The largest boxes
// are sorted.
TEST_F(OutputCoordinatesCudaTest, OfEveryExtentAreWhatTheCpuMakes) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    const CoordinateKey layout(dimension);
    for (const int32_t extent : {1, 7, 40, 4000}) {
      SCOPED_TRACE(::testing::Message() << dimension << " axes, " << extent);
      std::vector<uint64_t> in = SitesFromZero(dimension, 3, std::min(600, extent), extent);
      for (uint64_t& key : in) {  // the third sample's smallest coordinates are above 0
        if (layout.Sample(key) != 2) continue;
        Axes site = layout.Unpack(key);
        for (int axis = 0; axis < dimension; ++axis) site[axis] = std::max(site[axis], extent / 2);
        key = layout.Pack(2, site);
      }
      std::sort(in.begin(), in.end());
      in.erase(std::unique(in.begin(), in.end()), in.end());
      OutputCoordinatesParams params;
      params.rule = CoordinateRule::kExpand;
      params.geometry = {
          .dimension = dimension, .kernel_size = {3, 3, 5, 3}, .stride = {2, 1, 3, 2}, .padding = {1, 0, 2, 1}};
      params.num_samples = 4;  // the last is empty
      std::fill_n(params.in_extent.begin(), dimension, extent);
      ExpectWhatTheCpuMakes(params, in);
      params.has_upper = true;
      params.upper = {extent / 2, extent, 5, 3};
      ExpectWhatTheCpuMakes(params, in);
      params.has_lower = true;
      params.lower = {0, 1, 0, 2};
      ExpectWhatTheCpuMakes(params, in);
      params.in_extent = {0, 0, 0, 0};  // bounds on both sides suffice
      ExpectWhatTheCpuMakes(params, in);
      params.lower = {-3, -3, -3, -3};  // outputs may be below 0, so there is no box
      ExpectWhatTheCpuMakes(params, in);
    }
  }
}

// These boxes are so large that memory is given only to the words that have outputs. Some inputs lie beyond the smaller
// box that the caller expects.
TEST_F(OutputCoordinatesCudaTest, OfALargeBoxAreWhatTheCpuMakes) {
  for (const auto& [dimension, extent] : std::vector<std::pair<int32_t, int32_t>>{{2, 8000}, {3, 500}, {4, 128}}) {
    const std::vector<uint64_t> in = SitesFromZero(dimension, 3, 20000, extent);
    OutputCoordinatesParams params;
    params.geometry = {.dimension = dimension, .kernel_size = {3, 3, 3, 3}, .stride = {2, 2, 2, 2}};
    params.num_samples = 4;  // the last is empty
    params.num_in = static_cast<int64_t>(in.size());
    for (const int32_t expected : {extent, extent - extent / 8}) {
      for (const CoordinateRule rule : {CoordinateRule::kExpand, CoordinateRule::kPadded}) {
        SCOPED_TRACE(::testing::Message() << dimension << " axes, " << expected << ", rule " << static_cast<int>(rule));
        params.rule = rule;
        std::fill_n(params.in_extent.begin(), dimension, expected);
        std::fill_n(params.out_shape.begin(), dimension, expected / 2);
        const auto key_bytes = 2 * sizeof(uint64_t) * static_cast<size_t>(NumOutputCandidates(params));
        EXPECT_LT(cuda::OutputCoordinatesWorkspaceBytes(params), key_bytes) << "it sorts, or has all words";
        ExpectWhatTheCpuMakes(params, in, OutputExtent(params));
      }
    }
  }
}

// This box has 8 MiB, but so many candidates that a list of its words would take more.
TEST_F(OutputCoordinatesCudaTest, OfABoxWithManyCandidatesAreWhatTheCpuMakes) {
  const std::vector<uint64_t> in = SitesFromZero(3, 3, 140000, 500);
  OutputCoordinatesParams params;
  params.rule = CoordinateRule::kExpand;
  params.geometry = {.kernel_size = {3, 3, 3, 1}, .stride = {2, 2, 2, 1}};
  params.num_samples = 4;
  params.num_in = static_cast<int64_t>(in.size());
  params.in_extent = {500, 500, 500, 0};
  EXPECT_LT(cuda::OutputCoordinatesWorkspaceBytes(params), 9'000'000u) << "not all words alone";
  ExpectWhatTheCpuMakes(params, in);
}

// Inputs lie below the box that the caller expects, and beyond the smaller boxes. The largest boxes are sorted.
TEST_F(OutputCoordinatesCudaTest, OutsideTheExpectedBoxAreLeftOut) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    const std::vector<uint64_t> in = RandomSites(dimension, 3, 100, 50);
    for (const CoordinateRule rule : {CoordinateRule::kFloor, CoordinateRule::kExpand}) {
      for (const int32_t extent : {1, 20, 100000}) {
        SCOPED_TRACE(::testing::Message() << dimension << " axes, " << extent << ", rule " << static_cast<int>(rule));
        OutputCoordinatesParams params;
        params.rule = rule;
        params.geometry = {.dimension = dimension, .kernel_size = {5, 5, 5, 5}, .stride = {3, 2, 3, 2}};
        params.num_samples = 3;
        std::fill_n(params.in_extent.begin(), dimension, extent);
        ExpectWhatTheCpuMakes(params, in, OutputExtent(params));
      }
    }
  }
}

// Division by a power of two needs no box.
TEST_F(OutputCoordinatesCudaTest, ThatKeepMortonOrderIgnoreTheExpectedBox) {
  OutputCoordinatesParams params;
  params.rule = CoordinateRule::kFloor;
  params.geometry = {.kernel_size = {2, 2, 2, 1}, .stride = {2, 2, 2, 1}};
  params.num_samples = 3;
  params.in_extent = {9, 9, 9, 0};
  ExpectWhatTheCpuMakes(params, RandomSites(3, 3, 600, 50));
}

TEST_F(OutputCoordinatesCudaTest, OfListedCellsAreWhatTheCpuMakes) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    SCOPED_TRACE(dimension);
    OutputCoordinatesParams params;
    params.rule = CoordinateRule::kGenerative;
    params.geometry = {.dimension = dimension,
                       .kernel_size = {4, 3, 2, 3},
                       .stride = {2, 3, 1, 2},
                       .dilation = {1, 2, 1, 1},
                       .padding = {-2, 1, 0, 4}};
    for (int32_t cell = 1; cell < params.geometry.Volume(); cell += 2) {
      params.geometry.listed_cells[static_cast<size_t>(params.geometry.num_listed_cells++)] = cell;
    }
    params.num_samples = 3;
    const std::vector<uint64_t> in = RandomSites(dimension, 3, 500, dimension == 1 ? 1000 : 30);
    ExpectWhatTheCpuMakes(params, in);
    params.rule = CoordinateRule::kTransposed;
    params.out_shape = {40, 33, 9, 17};
    ExpectWhatTheCpuMakes(params, in);
    if (dimension == 1) continue;
    // These boxes have memory only for the touched words.
    params.out_shape = dimension == 2 ? Axes{4000, 4000} : dimension == 3 ? Axes{250, 250, 250} : Axes{100, 90, 80, 20};
    ExpectWhatTheCpuMakes(params, RandomSites(dimension, 3, 9000, 90));
  }
}

TEST_F(OutputCoordinatesCudaTest, GeneratedSitesThatNoKeyCanHoldAreCountedAsOnTheCpu) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    SCOPED_TRACE(dimension);
    const CoordinateKey layout(dimension);
    const int32_t high = layout.max_coordinate(), low = layout.min_coordinate();
    std::vector<uint64_t> in;
    for (const int32_t at : {low, low / 2, low / 2 - 1, 0, high / 2, high / 2 + 1, high}) {
      in.push_back(layout.Pack(at == 0 ? 0 : kMaxSamples - 1, {at, 0, 0, 0}));
    }
    OutputCoordinatesParams params;
    params.rule = CoordinateRule::kGenerative;
    params.geometry = {.dimension = dimension, .kernel_size = {3, 1, 1, 1}, .padding = {1, 0, 0, 0}};
    params.num_samples = kMaxSamples;
    for (const int32_t stride : {1, 2, 128}) {
      params.geometry.stride = {stride, 1, 1, 1};
      ExpectWhatTheCpuMakes(params, in);
    }
  }
}

TEST_F(OutputCoordinatesCudaTest, SitesAtTheLimitsOfTheKeySurviveTheFloor) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    SCOPED_TRACE(dimension);
    const CoordinateKey layout(dimension);
    std::vector<uint64_t> in;
    for (const int32_t first : {layout.min_coordinate(), -3, -1, 0, 1, layout.max_coordinate()}) {
      for (const int32_t last : {layout.min_coordinate(), -2, -1, 0, 2, layout.max_coordinate()}) {
        Axes site = {0, 0, 0, 0};
        site[dimension - 1] = last;
        site[0] = first;
        for (const int32_t sample : {0, 1, kMaxSamples - 1}) in.push_back(layout.Pack(sample, site));
      }
    }
    std::sort(in.begin(), in.end());
    in.erase(std::unique(in.begin(), in.end()), in.end());
    for (const int32_t stride : {1, 2, 3, 4, 64, 4096, 1 << 20}) {
      OutputCoordinatesParams params;
      params.geometry.dimension = dimension;
      params.geometry.stride = {stride, stride, stride, stride};
      params.num_samples = kMaxSamples;
      ExpectWhatTheCpuMakes(params, in);
      params.geometry.stride[0] = 1;
      ExpectWhatTheCpuMakes(params, in);
    }
  }
}

TEST_F(OutputCoordinatesCudaTest, WhatNoKeyCanHoldIsCountedAsOnTheCpu) {
  const CoordinateKey layout(3);
  const int32_t high = layout.max_coordinate(), low = layout.min_coordinate();
  const std::vector<uint64_t> in = {layout.Pack(1, {0, 0, high, 0}),     layout.Pack(2, {0, 0, 7, 0}),
                                    layout.Pack(3, {1, 0, high, 0}),     layout.Pack(3, {2, 0, low, 0}),
                                    layout.Pack(3, {2, 0, high - 1, 0}), layout.Pack(1023, {high, low, high, 0})};
  OutputCoordinatesParams params;
  params.rule = CoordinateRule::kExpand;
  params.geometry = {.kernel_size = {3, 1, 3, 1}, .stride = {2, 1, 1, 1}, .padding = {1, 0, 1, 0}};
  params.num_samples = kMaxSamples;
  ExpectWhatTheCpuMakes(params, in);
  params.has_lower = true;
  params.lower = {INT32_MIN, INT32_MIN, INT32_MIN, 0};
  ExpectWhatTheCpuMakes(params, in);
  params.geometry.stride = {1, 1, 2, 1};
  params.has_upper = true;
  params.upper = {INT32_MAX, INT32_MAX, 3, 0};
  ExpectWhatTheCpuMakes(params, in);
}

TEST_F(OutputCoordinatesCudaTest, ZeroRowsMakeZeroRows) {
  std::vector<int64_t> beyond_limits;
  for (const CoordinateRule rule : {CoordinateRule::kFloor, CoordinateRule::kPadded, CoordinateRule::kExpand,
                                    CoordinateRule::kTransposed, CoordinateRule::kGenerative}) {
    OutputCoordinatesParams params;
    params.rule = rule;
    params.geometry = {.kernel_size = {3, 3, 3, 1}, .stride = {2, 2, 2, 1}, .padding = {1, 1, 1, 0}};
    params.out_shape = {5, 5, 5, 0};
    params.num_samples = 2;
    EXPECT_THAT(Run(params, Level({}), &beyond_limits), IsEmpty());
    EXPECT_THAT(beyond_limits, ElementsAre(0, 0));
    Level without_room({});
    without_room.capacity = 0;
    EXPECT_THAT(Run(params, without_room, &beyond_limits), IsEmpty());
    EXPECT_THAT(beyond_limits, ElementsAre(0, 0));
  }
}

// Makes all levels of a U-Net with one call, and the first input row of each output. Compares both with levels that are
// made one by one.
TEST_F(OutputCoordinatesCudaTest, OfAChainAreThoseOfItsLevels) {
  for (const int32_t dimension : {1, 2, 3, 4}) {
    for (const size_t count : {0, 1, 9000, 300'000}) {
      if (count > 9000 && dimension != 3) continue;  // the blocks of so many rows take two steps
      SCOPED_TRACE(::testing::Message() << dimension << " " << count);
      const int32_t extent = count > 9000 ? 100 : dimension == 1 ? 20000 : dimension == 2 ? 150 : 40;
      const Level first(ToMorton(RandomSites(dimension, 3, count, extent), dimension));
      std::vector<std::vector<uint64_t>> expected = {first.host};
      std::vector<OutputCoordinatesParams> chain;
      std::vector<std::unique_ptr<DeviceArray<uint64_t>>> keys;
      std::vector<std::unique_ptr<DeviceArray<int32_t>>> first_in_rows;
      const std::vector<int32_t> strides = {2, 1, 4, 2, 2, 1, 2, 1};  // as many as a chain can have
      const DeviceArray<int64_t> num_out(Device::kCuda, strides.size());
      const DeviceArray<int64_t> beyond(Device::kCuda, 3 * strides.size());
      for (size_t i = 0; i < strides.size(); ++i) {
        OutputCoordinatesParams params;
        params.geometry.dimension = dimension;
        params.geometry.stride = {strides[i], strides[i], strides[i], strides[i]};
        params.num_samples = 3;
        std::vector<int64_t> beyond_limits;
        expected.push_back(Run(params, Level(expected.back()), &beyond_limits));
        params.in_keys = chain.empty() ? first.keys.data() : chain.back().out_keys;
        params.num_in = first.capacity;
        params.device_num_in = chain.empty() ? first.count.data() : chain.back().num_out;
        params.out_capacity = OutputCoordinatesCapacity(params);
        keys.push_back(std::make_unique<DeviceArray<uint64_t>>(Device::kCuda, static_cast<size_t>(first.capacity)));
        first_in_rows.push_back(
            std::make_unique<DeviceArray<int32_t>>(Device::kCuda, static_cast<size_t>(first.capacity)));
        params.out_keys = keys.back()->data();
        params.first_in_rows = i == 1 ? nullptr : first_in_rows.back()->data();
        params.num_out = num_out.data() + i;
        params.num_beyond_limits = beyond.data() + 3 * i;
        chain.push_back(params);
      }
      ASSERT_TRUE(cuda::CanBeChained(chain));
      const DeviceArray<char> workspace(Device::kCuda, cuda::OutputCoordinatesChainWorkspaceBytes(chain));
      chain[0].workspace = workspace.data();
      ExpectCudaSuccess(cuda::OutputCoordinatesChain(chain, TestStream()));
      EXPECT_THAT(beyond.ToHost(), Each(0));
      for (size_t i = 0; i < strides.size(); ++i) {
        SCOPED_TRACE(i);
        const std::vector<uint64_t>& out = expected[i + 1];
        ASSERT_EQ(num_out.ToHost()[i], static_cast<int64_t>(out.size()));
        std::vector<uint64_t> made = keys[i]->ToHost();
        made.resize(out.size());
        EXPECT_EQ(made, out);
        if (chain[i].first_in_rows == nullptr) continue;
        const std::vector<int32_t> rows = first_in_rows[i]->ToHost();
        for (size_t row = 0; row < out.size(); ++row) {
          // The inputs before an output's first input make exactly the outputs before that output.
          std::vector<int64_t> beyond_limits;
          const auto in_row = static_cast<size_t>(rows[row]);
          ASSERT_LT(in_row, expected[i].size());
          if (row % 500 != 0) continue;
          const std::vector<uint64_t> before(expected[i].begin(), expected[i].begin() + rows[row]);
          EXPECT_EQ(Run(chain[i], Level(before), &beyond_limits).size(), row);
          const std::vector<uint64_t> with(expected[i].begin(), expected[i].begin() + rows[row] + 1);
          EXPECT_EQ(Run(chain[i], Level(with), &beyond_limits).size(), row + 1);
        }
      }
    }
  }
}

// The host refuses the parameters of these tests, so they need no GPU, and the params point to no memory.
TEST(OutputCoordinatesRefusalCudaTest, OnlyWhatKeepsMortonOrderIsChained) {
  OutputCoordinatesParams floor;
  floor.geometry.stride = {2, 2, 2, 1};
  OutputCoordinatesParams uneven = floor;
  uneven.geometry.stride = {2, 2, 1, 1};
  OutputCoordinatesParams padded = floor;
  padded.rule = CoordinateRule::kPadded;
  EXPECT_TRUE(cuda::CanBeChained(std::vector{floor, floor, floor}));
  EXPECT_FALSE(cuda::CanBeChained(std::vector{floor, uneven}));
  EXPECT_FALSE(cuda::CanBeChained(std::vector{padded}));
  OutputCoordinatesParams far = floor;
  far.geometry.stride = {1 << 12, 1 << 12, 1 << 12, 1};
  EXPECT_TRUE(cuda::CanBeChained(std::vector{far}));
  EXPECT_FALSE(cuda::CanBeChained(std::vector{far, far})) << "a field has no 24 bits";
  EXPECT_FALSE(cuda::CanBeChained(std::vector(9, floor)));
}

TEST(OutputCoordinatesRefusalCudaTest, TooLittleRoomIsRefused) {
  OutputCoordinatesParams params;
  params.num_in = 10;
  params.out_capacity = 9;
  EXPECT_EQ(cuda::OutputCoordinates(params, TestStream()), cudaErrorInvalidValue);
  support::Synchronize();
}

TEST(OutputCoordinatesRefusalCudaTest, AChainWhoseLevelsDoNotFitEachOtherIsRefused) {
  constexpr size_t kNumLevels = 3;
  const auto expect_refused = [](const char* why, size_t level,
                                 const std::function<void(OutputCoordinatesParams&)>& spoil) {
    SCOPED_TRACE(::testing::Message() << why << ", level " << level);
    OutputCoordinatesParams fitting;
    fitting.geometry.stride = {2, 2, 2, 1};
    fitting.num_samples = 2;
    fitting.num_in = fitting.out_capacity = 10;
    std::vector<OutputCoordinatesParams> chain(kNumLevels, fitting);
    spoil(chain[level]);
    EXPECT_TRUE(cuda::CanBeChained(chain)) << "refused for another reason";
    EXPECT_EQ(cuda::OutputCoordinatesChain(chain, TestStream()), cudaErrorInvalidValue);
    support::Synchronize();
  };
  for (size_t level = 0; level < kNumLevels; ++level) {
    expect_refused("room for fewer than it has inputs", level, [](auto& params) { params.out_capacity = 9; });
  }
  for (size_t level = 1; level < kNumLevels; ++level) {
    expect_refused("fewer inputs than the level before makes, and room for no more", level,
                   [](auto& params) { params.num_in = params.out_capacity = 9; });
    expect_refused("fewer inputs than the level before makes", level, [](auto& params) { params.num_in = 9; });
    expect_refused("more inputs than the level before makes", level,
                   [](auto& params) { params.num_in = params.out_capacity = 11; });
    expect_refused("fewer samples", level, [](auto& params) { params.num_samples = 1; });
    expect_refused("more samples", level, [](auto& params) { params.num_samples = 3; });
    expect_refused("another dimension", level, [](auto& params) { params.geometry.dimension = 2; });
  }
}

}  // namespace
}  // namespace voxserve::kernels::output_coordinates_cuda_test
