// Tests attention within groups by windows, and places in windows, in whole networks: against an interpreter of graphs,
// alone and in batches, and over two runs.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/engine/executor/company.h"
#include "tests/engine/executor/program_comparison.h"
#include "tests/engine/executor/random_points.h"

namespace voxserve::windows_test {
namespace {

using kernels::GroupTail;
using kernels::SiteWindows;

constexpr kernels::Axes kFlatShape = {60, 50, 1, 1};  // pillars
const std::vector<SiteWindows> kWindows = {
    {.shape = {12, 12, 1, 1}, .axes = {1, 0, 2, 3}},
    {.shape = {24, 24, 1, 1}, .shift = {6, 6, 0, 0}},
    {.shape = {13, 13, 1, 1}, .shift = {6, 6, 0, 0}, .is_snake = true},
    {.shape = {5, 3, 2, 1}, .shift = {2, 0, 1, 0}, .axes = {2, 0, 1, 3}, .is_snake = true},
};

// Adds attention within groups, and a norm behind the sum, as DSVT has them.
int Block(GraphBuilder& b, int input, int groups, int num_heads, Products products = Products::kLinear) {
  const auto product = [&](int of, bool bias) { return Product(b, of, bias, products); };
  const int attention =
      b.GroupAttention(product(input, true), product(input, false), product(input, true), groups, num_heads, 0.7f);
  return b.RowNorm(b.Sum(product(attention, true), input), kernels::RowNorm::kLayerNorm, 1e-5f);
}

// Returns a network with a block for each kind of windows, for each tail.
Graph Pillars(int size, Products products) {
  GraphBuilder b(7, kernels::CoordinateRule::kFloor, 3, kFlatShape);
  int trunk = b.Submanifold(0, 8, true);
  for (const SiteWindows& windows : kWindows) {
    for (const GroupTail tail : {GroupTail::kSpread, GroupTail::kBorrows, GroupTail::kShort}) {
      trunk = Block(b, trunk, b.WindowGroups(trunk, windows, size, tail), 2, products);
    }
  }
  return b.Finish(b.Submanifold(trunk, 3, true));
}

class WindowsNetworkTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, WindowsNetworkTest, support::AllDevices(), support::DeviceName);

TEST_P(WindowsNetworkTest, NumbersOfSitesAroundAGroup) {
  constexpr int kSize = 8;
  const SiteWindows one = {.shape = {64, 64, 64, 1}};
  uint32_t seed = 0;
  for (const int num_sites : {0, 1, kSize - 1, kSize, kSize + 1, 2 * kSize - 1, 2 * kSize, 2 * kSize + 1, 130}) {
    for (const SiteWindows& windows : {one, kWindows[3]}) {
      SCOPED_TRACE(num_sites);
      GraphBuilder b(++seed);
      const int stem = b.Submanifold(0, 8, true);
      const int attention = Block(b, stem, b.WindowGroups(stem, windows, kSize, GroupTail::kSpread), 2);
      ExpectEqual(GetParam(), b.Finish(b.Linear(attention, 3, true)), PointsOn(num_sites, kShape, seed));
    }
  }
}

// Most of a group's places, and on a GPU of its parts, have no site.
TEST_P(WindowsNetworkTest, WindowsOfFewerSitesThanAGroupHasPlaces) {
  const SiteWindows windows = {.shape = {24, 24, 1, 1}, .shift = {6, 6, 0, 0}};
  uint32_t seed = 20;
  for (const int num_sites : {1, 2, 5, 40}) {  // of 9 windows
    SCOPED_TRACE(num_sites);
    GraphBuilder b(++seed, kernels::CoordinateRule::kFloor, 3, kFlatShape);
    const int stem = b.Submanifold(0, 8, true);
    const int attention = Block(b, stem, b.WindowGroups(stem, windows, 576, GroupTail::kSpread), 2);
    ExpectEqual(GetParam(), b.Finish(b.Linear(attention, 3, true)), PointsOn(num_sites, kFlatShape, seed));
  }
}

TEST_P(WindowsNetworkTest, EveryKindOfWindowsAndTail) {
  ExpectEqual(GetParam(), Pillars(7, Products::kLinear), PointsOn(900, kFlatShape, 11));
}

TEST_P(WindowsNetworkTest, OfACoarseLevelAndBehindAPrune) {
  GraphBuilder b(5);
  const int stem = b.Submanifold(0, 8, true);
  const int down = b.Down(stem, 8);
  const int coarse = Block(b, down, b.WindowGroups(down, kWindows[3], 5, GroupTail::kSpread), 4);
  const int up = b.Sum(b.Up(coarse, down, 8), stem);
  const int pruned = b.Prune(up, b.Linear(stem, 1, true), 0.05f);
  const int attention = Block(b, pruned, b.WindowGroups(pruned, kWindows[3], 6, GroupTail::kSpread), 1);
  ExpectEqual(GetParam(), b.Finish(b.Onto(attention, 0, 3)), PointsOn(100, kShape, 5));
}

TEST_P(WindowsNetworkTest, PlacesInWindows) {
  GraphBuilder b(6);
  const int stem = b.Submanifold(0, 8, true);
  kernels::SiteCoordinatesParams place{.window_shape = {5, 3, 2, 0}, .window_shift = {4, 0, 1, 0}};
  place.scale[0] = 0.5f;
  place.shift[1] = -1.5f;
  const int coordinates = b.SiteCoordinates(stem, place);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Sum(b.Linear(coordinates, 8, true), stem), 3, true)), 6);
}

// Groups that are spread have a list of their own for each size; others share the order.
TEST_P(WindowsNetworkTest, EqualOrdersAreMadeOnce) {
  GraphBuilder b(6);
  int trunk = b.Submanifold(0, 8, true);
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const int size : {4, 6}) {
      for (const GroupTail tail : {GroupTail::kBorrows, GroupTail::kShort, GroupTail::kSpread}) {
        trunk = Block(b, trunk, b.WindowGroups(trunk, kWindows[0], size, tail), 2);
      }
    }
  }
  const Graph graph = b.Finish(b.Linear(trunk, 3, true));
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->orders.size(), 3u);
  ExpectEqual(GetParam(), graph, PointsOn(50, kShape, 6));
}

// Every sample has the same bytes alone, in batches, and in a second run by another context.
TEST_P(WindowsNetworkTest, ASampleIsInCompanyWhatItIsAlone) {
  const Graph graph = Pillars(16, Products::kConvolutions);
  std::vector<PointCloud> clouds;
  for (const int num_sites : {0, 1, 15, 16, 17, 31, 32, 33, 1500}) {
    clouds.push_back(CloudOf(PointsOn(num_sites, kFlatShape, static_cast<uint32_t>(num_sites))));
  }
  ExpectSameInCompany(GetParam(), graph, clouds, {{8, 0, 3, 8, 5}, {1, 8}, {0, 7, 6, 5, 4, 3, 2, 1, 0}});
}

TEST(WindowsOnCudaTest, OrdersOfTheCpuAreThoseOfTheGpu) {
  SKIP_WITHOUT(support::Device::kCuda);
  ExpectEqualWithMapsOfTheCpu(Pillars(16, Products::kLinear));
}

}  // namespace
}  // namespace voxserve::windows_test
