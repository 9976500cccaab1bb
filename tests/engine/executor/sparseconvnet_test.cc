// Compares SparseConvNet's layers, written as nodes of a model folder, with plain loops (sparseconvnet_reference.h):
// kernels of 1 to 4 and strides of 1 to 3 that differ by axis, with and without groups and biases, in 1 to 4
// dimensions.

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/engine/executor/conv_network_run.h"
#include "tests/engine/executor/sparseconvnet_network.h"

namespace voxserve::sparseconvnet::sparseconvnet_test {
namespace {

constexpr int kChannels = 4;

// device, dimension, seed
class SparseConvNetTest : public ::testing::TestWithParam<std::tuple<support::Device, int, uint32_t>> {
 protected:
  SparseConvNetTest() : draw_(std::get<2>(GetParam()) * 41 + static_cast<uint32_t>(dimension()), dimension()) {}

  void SetUp() override { SKIP_WITHOUT(std::get<0>(GetParam())); }

  static int dimension() { return std::get<1>(GetParam()); }

  Box DrawBox(int largest_size = 4, int largest_stride = 3) {
    return {.size = draw_.Axes(1, largest_size), .stride = draw_.Axes(1, largest_stride)};
  }
  // Draws the spatial size of the last level, which no convolution reads.
  Place DrawLast() {
    const int largest[] = {9, 4, 3, 2};
    return draw_.Axes(1, largest[dimension() - 1]);
  }
  int DrawGroups() { return draw_.Up(1, 2) == 1 ? 1 : 2; }

  Network NetworkOf(const Place& spatial_size) {
    return {dimension(), spatial_size, kChannels, std::get<2>(GetParam())};
  }
  // Returns the spatial size of the first level from which convolutions with these boxes, one after the other, lead to
  // a last level.
  Place SizeBefore(const std::vector<Box>& boxes) {
    Place size = DrawLast();
    for (size_t i = boxes.size(); i > 0; --i) size = Larger(dimension(), size, boxes[i - 1]);
    return size;
  }

  // Runs three samples, one of which is often empty.
  void ExpectEqual(const Network& network, const Layer& head) {
    std::vector<Rows> samples;
    for (int i = 0; i < 3; ++i) {
      samples.push_back(RandomVoxels(dimension(), kChannels, kNone, network.input().spatial_size, draw_.random()));
    }
    if (std::get<2>(GetParam()) % 2 == 0) samples[1].clear();
    network.ExpectEqual(std::get<0>(GetParam()), head, samples);
  }

  Draw draw_;
};

std::string NameOf(const ::testing::TestParamInfo<SparseConvNetTest::ParamType>& test) {
  const auto [device, dimension, seed] = test.param;
  return absl::StrCat(device == support::Device::kCpu ? "Cpu" : "Cuda", dimension, "d", seed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SparseConvNetTest,
                         ::testing::Combine(support::AllDevices(), ::testing::Range(1, 5), ::testing::Range(0u, 8u)),
                         NameOf);

TEST_P(SparseConvNetTest, SubmanifoldConvolutionOfAnySize) {
  const int largest[] = {40, 11, 7, 5};
  Network network = NetworkOf(draw_.Axes(2, largest[dimension() - 1]));
  const Layer first = network.SubmanifoldConvolution(network.input(), draw_.Axes(1, 4), 6);
  ExpectEqual(network, network.SubmanifoldConvolution(first, draw_.Axes(1, 4), 4, DrawGroups()));
}

TEST_P(SparseConvNetTest, PermutohedralSubmanifoldConvolution) {
  const int largest[] = {40, 11, 7, 5};
  Network network = NetworkOf(draw_.Axes(2, largest[dimension() - 1]));
  ExpectEqual(network, network.PermutohedralSubmanifoldConvolution(network.input(), 5));
}

TEST_P(SparseConvNetTest, ConvolutionAndItsDeconvolution) {
  const Box box = DrawBox();
  Network network = NetworkOf(SizeBefore({box}));
  const Layer down = network.Convolution(network.input(), box, 6, DrawGroups());
  const Layer coarse = network.SubmanifoldConvolution(down, draw_.Axes(1, 3), 4);
  const Layer up = network.Deconvolution(coarse, network.input(), down, box, 4, DrawGroups());
  ExpectEqual(network, network.WithNumSites(up, coarse));
}

// The kernel equals the stride, so the convolution follows RULE_FLOOR, which needs no range of the voxels.
TEST_P(SparseConvNetTest, ConvolutionOfAnEvenSizeThatIsItsStride) {
  Place size = draw_.Axes(1, dimension() == 4 ? 1 : 2);
  for (int32_t& length : size) length *= 2;
  const Box box{.size = size, .stride = size};
  Network network = NetworkOf(SizeBefore({box}));
  const Layer down = network.Convolution(network.input(), box, 6, DrawGroups(), "RULE_FLOOR");
  const Layer coarse = network.SubmanifoldConvolution(down, draw_.Axes(1, 3), 4);
  ExpectEqual(network, network.WithNumSites(network.Deconvolution(coarse, network.input(), down, box, 4), coarse));
}

// The network has the form of SparseConvNet's UNet().
TEST_P(SparseConvNetTest, TwoLevelsAndBack) {
  const int largest[] = {4, 4, 3, 2};
  const Box first = DrawBox(largest[dimension() - 1], 2), second = DrawBox(2, 2);
  Network network = NetworkOf(SizeBefore({first, second}));
  const Layer stem = network.SubmanifoldConvolution(network.input(), draw_.Axes(1, 3), 5);
  const Layer down = network.Convolution(stem, first, 6);
  const Layer further_down = network.Convolution(down, second, 7);
  const Layer up = network.Deconvolution(further_down, down, further_down, second, 4);
  const Layer joined = network.SubmanifoldConvolution(network.JoinTable(down, up), draw_.Axes(1, 3), 6, DrawGroups());
  const Layer back = network.Deconvolution(joined, stem, down, first, 3);
  ExpectEqual(network, network.WithNumSites(network.JoinTable(stem, back), further_down));
}

TEST_P(SparseConvNetTest, DeconvolutionWhereAPoolingLedDown) {
  const Box box = DrawBox();
  Network network = NetworkOf(SizeBefore({box}));
  const Layer down = network.MaxPooling(network.input(), box);
  const Layer coarse = network.SubmanifoldConvolution(down, draw_.Axes(1, 3), 4);
  ExpectEqual(network, network.Deconvolution(coarse, network.input(), std::nullopt, box, 6, DrawGroups()));
}

TEST_P(SparseConvNetTest, FullConvolutionOfVoxels) {
  const Box box = DrawBox();
  Network network = NetworkOf(DrawLast());
  const Layer fine = network.FullConvolution(network.input(), box, 3, 1);
  const Layer coarse = network.Convolution(fine, box, 4);
  ExpectEqual(network, network.WithNumSites(network.AtVoxels(coarse), fine));
}

TEST_P(SparseConvNetTest, FullConvolutionBehindAConvolution) {
  const Box box = DrawBox();
  Network network = NetworkOf(SizeBefore({box}));
  const Layer down = network.Convolution(network.input(), box, 6);
  const Layer fine = network.FullConvolution(down, {.size = draw_.Axes(1, 4), .stride = box.stride}, 4, DrawGroups());
  const Layer mixed = network.SubmanifoldConvolution(fine, draw_.Axes(1, 2), 3);
  ExpectEqual(network, network.WithNumSites(network.AtVoxels(mixed), fine));
}

TEST_P(SparseConvNetTest, PoolingsAndUnPooling) {
  const Box box = DrawBox();
  Network network = NetworkOf(SizeBefore({box}));
  const Layer largest = network.MaxPooling(network.input(), box, draw_.Up(0, 2));
  const Layer average = network.AveragePooling(network.input(), box, draw_.Up(0, 2));
  const Layer up = network.UnPooling(network.JoinTable(largest, average), network.input(), average, box);
  ExpectEqual(network, network.WithNumSites(up, largest));
}

// The network has the form of SparseConvNet's FullyConvolutionalNet().
TEST_P(SparseConvNetTest, UnPoolingWhereAConvolutionLedDown) {
  const Box box = DrawBox();
  Network network = NetworkOf(SizeBefore({box}));
  const Layer down = network.Convolution(network.input(), box, 5, 1);
  ExpectEqual(network, network.JoinTable(network.input(), network.UnPooling(down, network.input(), down, box)));
}

// If the stride is above the kernel's size, no output reads the sites between two positions of the kernel. On the first
// axis site 2 is such a site; sites 3 and 4 are read.
TEST_P(SparseConvNetTest, SitesOfAStrideAboveTheSize) {
  const Box box{.size = {2, 2, 2, 2}, .stride = {3, 3, 3, 3}};
  Network network(dimension(), Larger(dimension(), {2, 2, 2, 2}, box), 1, std::get<2>(GetParam()));
  const Layer down = network.Convolution(network.input(), box, 3);
  const Layer up = network.Deconvolution(down, network.input(), down, box, 3);
  std::vector<Rows> samples;
  for (const int32_t at : {2, 3, 4}) samples.push_back({{Place{at, 0, 0, 0}, {1.5}}});
  EXPECT_EQ(Reached(RuleMaker(1).Strided({{4, 0, 0, 0}}, box.size, box.stride, {2, 1, 1, 1})),
            std::set<Place>({{1, 0, 0, 0}}));
  network.ExpectEqual(std::get<0>(GetParam()), network.WithNumSites(up, down), samples);
}

}  // namespace
}  // namespace voxserve::sparseconvnet::sparseconvnet_test
