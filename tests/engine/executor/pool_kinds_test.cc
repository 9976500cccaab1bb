// Tests every kind of pool, through the loader, the compiler and a device, against plain loops (conv_reference.h).
// Kernels, strides, dilations and paddings differ by axis, in 1 to 4 dimensions. Each sample must get the same result
// in a batch and alone.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>

#include "tests/engine/executor/conv_network_run.h"

namespace voxserve::pool_kinds_test {
namespace {

constexpr Place kOnes = {1, 1, 1, 1};
constexpr Place kZeros = {0, 0, 0, 0};
constexpr int kInputs = -1;  // as out_channels: a pool has the channels of its input

KernelShape PoolOf(KernelShape shape, Draw& draw) {
  shape.reduce = draw.Reduce();
  return shape;
}

class PoolKindsTest : public ::testing::TestWithParam<DrawnNetwork> {
 protected:
  void SetUp() override { SKIP_WITHOUT(std::get<0>(GetParam())); }

  void Run(bool has_grid, const std::function<std::string(ConvNetwork&, Draw&)>& build) {
    const auto [device, dimension, seed] = GetParam();
    ExpectDrawnNetwork(device, dimension, seed, has_grid, build);
  }

  // Adds a strided pool. With has_grid its sites follow rule PADDED, and `shape` becomes a kernel that fits the spatial
  // shape; else they follow FLOOR or EXPAND, as drawn.
  static std::string Down(ConvNetwork& network, Draw& draw, bool has_grid, KernelShape& shape, int out_channels) {
    if (has_grid) {
      const auto reduce = shape.reduce;
      shape = network.Fitting("voxels", draw.PaddedBox());
      shape.reduce = reduce;
      return network.Padded("voxels", shape, out_channels);
    }
    return draw.Up(0, 1) == 0 ? network.Floor("voxels", shape, out_channels)
                              : network.Expand("voxels", shape, out_channels, std::nullopt);
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, PoolKindsTest, DrawnNetworks(), NameOfDrawn);

TEST_P(PoolKindsTest, OverNeighbours) {
  Run(false, [](ConvNetwork& network, Draw& draw) {
    const std::string pooled = network.Submanifold("voxels", PoolOf(draw.Box(kOnes), draw), kInputs);
    const std::string mixed = network.Submanifold(pooled, draw.Box(kOnes), 5);
    return network.Submanifold(mixed, PoolOf(draw.Box(kOnes), draw), kInputs);
  });
}

TEST_P(PoolKindsTest, StridedAndBack) {
  for (const bool has_grid : {false, true}) {
    Run(has_grid, [has_grid](ConvNetwork& network, Draw& draw) {
      KernelShape shape = PoolOf(draw.Box(draw.Axes(1, 3)), draw);
      const std::string down = Down(network, draw, has_grid, shape, kInputs);
      const std::string mixed = network.Submanifold(down, draw.Box(kOnes), 5);
      return network.Inverse(mixed, down, "voxels", PoolOf(shape, draw), kInputs, 1);
    });
  }
}

// Inverse convolutions may use the rulebook of a pool, and inverse pools that of a convolution, as in spconv
// (indice_key).
TEST_P(PoolKindsTest, ConvolutionsAndPoolsInvertEachOther) {
  for (const bool has_grid : {false, true}) {
    Run(has_grid, [has_grid](ConvNetwork& network, Draw& draw) {
      KernelShape shape = PoolOf(draw.Box(draw.Axes(1, 3)), draw);
      const std::string down = Down(network, draw, has_grid, shape, kInputs);
      const std::string mixed = network.Submanifold(down, draw.Box(kOnes), 6);
      shape.reduce.reset();
      return network.Inverse(mixed, down, "voxels", shape, 4, draw.Up(1, 2));
    });
    Run(has_grid, [has_grid](ConvNetwork& network, Draw& draw) {
      KernelShape shape = draw.Box(draw.Axes(1, 3));
      const std::string down = Down(network, draw, has_grid, shape, 5);
      return network.Inverse(down, down, "voxels", PoolOf(shape, draw), kInputs, 1);
    });
  }
}

TEST_P(PoolKindsTest, TransposedMakesSitesWithinItsShape) {
  Run(true, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(1, 3);
    KernelShape shape = PoolOf(draw.Box(stride), draw);
    shape.padding = kZeros;
    const std::string fine = network.Transposed("voxels", shape, kInputs, kZeros);
    return network.Onto(fine, "voxels", draw.Any(stride), 4);
  });
}

// A kernel of one cell moves site c to stride * c.
TEST_P(PoolKindsTest, TransposedMovesSites) {
  Run(true, [](ConvNetwork& network, Draw& draw) {
    const Place stride = draw.Axes(2, 3);
    const KernelShape shape = PoolOf({.kernel_size = kOnes, .stride = stride, .padding = kZeros}, draw);
    const std::string moved = network.Transposed("voxels", shape, kInputs, kZeros);
    const std::string mixed = network.Submanifold(moved, draw.Box(kOnes), 5);
    return network.Onto(mixed, "voxels", {.kernel_size = kOnes, .stride = stride}, 4);
  });
}

}  // namespace
}  // namespace voxserve::pool_kinds_test
