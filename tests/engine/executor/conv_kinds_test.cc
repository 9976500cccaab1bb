// Tests every kind of convolution, through the loader, the compiler and a device, against plain loops
// (conv_reference.h). Kernels, strides, dilations and paddings differ by axis, in 1 to 4 dimensions. Each sample must
// get the same result in a batch and alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "kernels/coordinates/coordinate_key.h"
#include "tests/engine/executor/conv_network_run.h"

namespace voxserve::conv_kinds_test {
namespace {

constexpr Place kOnes = {1, 1, 1, 1};

class ConvKindsTest : public ::testing::TestWithParam<DrawnNetwork> {
 protected:
  void SetUp() override { SKIP_WITHOUT(std::get<0>(GetParam())); }

  void Run(bool has_grid, const std::function<std::string(ConvNetwork&, Draw&)>& build) {
    const auto [device, dimension, seed] = GetParam();
    ExpectDrawnNetwork(device, dimension, seed, has_grid, build);
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, ConvKindsTest, DrawnNetworks(), NameOfDrawn);

TEST_P(ConvKindsTest, TransposedMakesSitesWithinItsShape) {
  Run(true, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    KernelShape shape = draw.Box(stride);
    shape.padding = Place{0, 0, 0, 0};
    for (size_t axis = 0; axis < 4; ++axis) (*shape.padding)[axis] = draw.Up(0, (shape.kernel_size[axis] - 1) / 2);
    const std::string fine = network.Transposed("voxels", shape, 5, draw.Axes(0, 2));
    return network.Onto(fine, "voxels", draw.Any(stride), 3);
  });
}

TEST_P(ConvKindsTest, TransposedAfterPaddedMakesTheSameUnits) {
  Run(true, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    KernelShape down{.kernel_size = draw.Axes(1, 2), .stride = stride, .dilation = kOnes, .padding = draw.Axes(0, 1)};
    const std::string coarse = network.Padded("voxels", down, 5);
    KernelShape up{
        .kernel_size = draw.Axes(1, 4), .stride = stride, .dilation = draw.Axes(1, 2), .padding = Place{0, 0, 0, 0}};
    const std::string fine = network.Transposed(coarse, up, 4, draw.Axes(0, 1));
    return network.Onto(fine, "voxels", draw.Box(kOnes), 3);
  });
}

TEST_P(ConvKindsTest, GenerativeMakesSitesAnywhere) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    const std::string fine = network.Generative("voxels", draw.Any(stride), 5);
    return network.Onto(fine, "voxels", draw.Any(stride), 3);
  });
}

TEST_P(ConvKindsTest, GenerativeAfterFloorReturnsToTheVoxels) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    const std::string coarse = network.Floor("voxels", draw.Any(stride), 6);
    const std::string fine = network.Generative(coarse, draw.Any(stride), 4);
    const std::string submanifold = network.Submanifold(fine, draw.Box(kOnes), 4);
    return network.Onto(submanifold, "voxels", draw.Any(kOnes), 3);
  });
}

TEST_P(ConvKindsTest, GivenSitesOnEitherSide) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    const std::string sites = network.Floor("voxels", draw.Box(stride), 2);
    const std::string coarse = network.Onto("voxels", sites, draw.Any(stride), 6);
    KernelShape back = draw.Box(stride);
    if (draw.Up(0, 1) == 1) back.padding = draw.Axes(0, 2);
    return network.TransposedOnto(coarse, "voxels", back, 3);
  });
}

TEST_P(ConvKindsTest, ListedCellsAndTheirInverse) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    const KernelShape shape = draw.Up(0, 1) == 0 ? draw.Cross(stride) : draw.List(stride);
    const std::string down = network.Floor("voxels", shape, 6);
    return network.Inverse(down, down, "voxels", shape, 4, draw.Up(1, 2));
  });
}

TEST_P(ConvKindsTest, ListedCellsOfASubmanifold) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    const std::string cross = network.Submanifold("voxels", draw.Cross(kOnes), 4);
    return network.Submanifold(cross, draw.List(kOnes), 3);
  });
}

TEST_P(ConvKindsTest, GroupsAndDepthwise) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    KernelShape pairs = draw.Any(kOnes);
    pairs.groups = 2;
    KernelShape depthwise = draw.Any(kOnes);
    depthwise.groups = 6;
    return network.Submanifold(network.Submanifold("voxels", pairs, 6), depthwise, 12);
  });
}

// Tests MinkowskiEngine's convolutions, also with dilation.
TEST_P(ConvKindsTest, FloorAndItsInverse) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    const KernelShape shape = draw.Box(draw.Axes(1, 3));
    const std::string down = network.Floor("voxels", shape, 6);
    return network.Inverse(network.Submanifold(down, draw.Box(kOnes), 4), down, "voxels", shape, 4, draw.Up(1, 2));
  });
}

// Uses PyTorch's padding, kernels of size 3 or more, and a different dilation and stride on each axis.
TEST_P(ConvKindsTest, PaddedAndItsInverse) {
  Run(true, [](ConvNetwork& network, Draw& draw) {
    KernelShape shape = draw.PaddedBox();
    shape.kernel_size[0] = std::max(shape.kernel_size[0], 3);
    shape.dilation[0] = std::max(shape.dilation[0], 2);
    shape = network.Fitting("voxels", shape);
    const std::string down = network.Padded("voxels", shape, 6);
    const std::string same = network.Submanifold(down, draw.Box(kOnes), 6);
    return network.Inverse(same, down, "voxels", shape, 4, draw.Up(1, 2));
  });
}

TEST_P(ConvKindsTest, PaddedTwiceAndTheirInverses) {
  Run(true, [](ConvNetwork& network, Draw& draw) {
    const KernelShape first = network.Fitting("voxels", draw.PaddedBox());
    const std::string middle = network.Padded("voxels", first, 5);
    const KernelShape second = network.Fitting(middle, draw.PaddedBox());
    const std::string down = network.Padded(middle, second, 4);
    const std::string up = network.Inverse(down, down, middle, second, 6, 1);
    return network.Inverse(up, middle, "voxels", first, 3, 1);
  });
}

TEST_P(ConvKindsTest, ExpandAndItsInverse) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    KernelShape shape = draw.Box(draw.Axes(1, 3));
    shape.stride[0] = 2;  // neither 1 nor the kernel's size, else EXPAND would be FLOOR
    shape.kernel_size[0] = 3;
    std::optional<std::pair<Place, Place>> bounds;
    if (draw.Up(0, 2) == 0) bounds.emplace(draw.Axes(-9, -1), draw.Axes(0, 9));
    const std::string down = network.Expand("voxels", shape, 6, bounds);
    const std::string same = network.Submanifold(down, draw.Box(kOnes), 5);
    return network.Inverse(same, down, "voxels", shape, 4, 1);
  });
}

class LargeKernelTest : public ::testing::TestWithParam<support::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, LargeKernelTest, support::AllDevices(), support::DeviceName);

// Kernels have 125, 343 and 512 cells in three dimensions, and 81, 256 and 625 in four. A row's mask of cells then
// needs several words, and a search needs several launches.
TEST_P(LargeKernelTest, IsWhatIsDefined) {
  SKIP_WITHOUT(GetParam());
  const std::vector<std::pair<int, int>> kernels = {{3, 5}, {3, 7}, {3, 8}, {4, 3}, {4, 4}, {4, 5}};
  for (const auto& [dimension, size] : kernels) {
    std::mt19937 random(static_cast<uint32_t>(size));
    ConvNetwork network(dimension, 3, std::nullopt, 7);
    const Place sizes = {size, size, size, size};
    const Place twos = {2, 2, 2, 2};
    const std::string same = network.Submanifold("voxels", {.kernel_size = sizes}, 5);
    const std::string coarse = network.Floor(same, {.kernel_size = sizes, .stride = twos}, 4);
    const std::string head = network.Inverse(coarse, coarse, same, {.kernel_size = sizes, .stride = twos}, 3, 1);
    std::vector<Rows> samples;
    for (int i = 0; i < 2; ++i) {
      samples.push_back(RandomVoxels(dimension, 3, {-4, -3, -2, 0}, {8, 7, 6, dimension == 4 ? 3 : 1}, random));
    }
    ExpectWhatIsDefined(GetParam(), network, head, samples);
  }
}

// The kernel has 729 cells; the tables of a GPU have at most 625. So a GPU must refuse the model and name the node.
TEST_P(LargeKernelTest, BeyondAGpusTablesIsRefusedThereByName) {
  SKIP_WITHOUT(GetParam());
  std::mt19937 random(3);
  ConvNetwork network(3, 2, std::nullopt, 5);
  const std::string head = network.Submanifold("voxels", {.kernel_size = {9, 9, 9, 1}}, 3);
  if (GetParam() == support::Device::kCpu) {
    ExpectWhatIsDefined(GetParam(), network, head, {RandomVoxels(3, 2, {-5, -5, -5, 0}, {9, 8, 9, 1}, random)});
    return;
  }
  const absl::StatusOr<Graph> graph = LoadTestGraph(network.Finish(head));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const absl::Status refused = (*runner)->Compile(*graph, VariantsOf(GetParam())[0]).status();
  EXPECT_EQ(ReasonOf(refused), error_reason::kBadModel) << refused;
  EXPECT_NE(refused.message().find("its kernel has 729 cells; at most 625 are possible on a GPU"),
            absl::string_view::npos)
      << refused;
}

class ConvLimitsTest : public ::testing::TestWithParam<support::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, ConvLimitsTest, support::AllDevices(), support::DeviceName);

TEST_P(ConvLimitsTest, GeneratedSitesBeyondTheKeyRefuseTheirSampleAlone) {
  SKIP_WITHOUT(GetParam());
  ConvNetwork network(3, 1, std::nullopt, 1);
  const Place twos = {2, 2, 2, 1};
  const std::string fine = network.Generative("voxels", {.kernel_size = twos, .stride = twos}, 2);
  const support::TestModel model =
      network.Finish(network.Onto(fine, "voxels", {.kernel_size = twos, .stride = twos}, 2));
  const absl::StatusOr<Graph> graph = LoadTestGraph(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(*graph, VariantsOf(GetParam())[0]);
  ASSERT_TRUE(program.ok()) << program.status();
  // `half` is the last voxel for which all eight generated sites have coordinates that a key can hold. For the next
  // voxel, no site has.
  const int32_t half = kernels::CoordinateKey(3).max_coordinate() / 2;
  const PointCloud within = CloudOf({{{half, 0, 0, 0}, {1.0}}}, 3, 1);
  const PointCloud beyond = CloudOf({{{half + 1, 0, 0, 0}, {1.0}}, {{1, 1, 1, 0}, {1.0}}}, 3, 1);
  const BatchReport output = (*runner)->Run(*program, {&within, &beyond, &within}, true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_TRUE(output.samples[0].status.ok()) << output.samples[0].status;
  EXPECT_TRUE(output.samples[2].status.ok()) << output.samples[2].status;
  EXPECT_EQ(output.samples[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(output.samples[1].status), error_reason::kCoordinateLimits);
  EXPECT_NE(output.samples[1].status.message().find("asks 8 times for sites outside"), absl::string_view::npos)
      << output.samples[1].status;
}

}  // namespace
}  // namespace voxserve::conv_kinds_test
