// Tests attention within groups of sites in whole networks: against an interpreter of graphs, alone and in batches, and
// over two runs. The groups' orders are those of all curves, on two levels, by both rules of depth.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/engine/executor/company.h"
#include "tests/engine/executor/program_comparison.h"
#include "tests/engine/executor/random_points.h"

namespace voxserve::groups_test {
namespace {

using kernels::Curve;
using kernels::GroupTail;

constexpr Curve kCurves[] = {Curve::kZ, Curve::kZTransposed, Curve::kHilbert, Curve::kHilbertTransposed};
constexpr int kOwnLevel = -1;  // as halvings
constexpr kernels::Axes kWideShape = {40, 30, 20, 1};

// Adds attention within groups with queries, keys and values of `input`, as a transformer's block has them.
int Block(GraphBuilder& b, int input, int groups, int num_heads, Products products = Products::kLinear) {
  const auto product = [&](int of, bool bias) { return Product(b, of, bias, products); };
  const int normed = b.RowNorm(input, kernels::RowNorm::kLayerNorm, 1e-5f);
  const int attention =
      b.GroupAttention(product(normed, true), product(normed, false), product(normed, true), groups, num_heads, 0.7f);
  return b.Sum(product(attention, true), input);
}

// Returns a U-Net with a block for each curve on both levels, by both rules of depth.
Graph UNet(int size, GroupTail tail, Products products) {
  GraphBuilder b(7, kernels::CoordinateRule::kFloor, 3, kWideShape);
  int fine = b.Submanifold(0, 8, true);
  for (const Curve curve : kCurves) fine = Block(b, fine, b.Groups(fine, curve, 0, size, tail), 2, products);
  const int down = b.Down(fine, 8);
  int coarse = down;
  for (const Curve curve : kCurves) {
    for (const int halvings : {kOwnLevel, 1}) {
      coarse = Block(b, coarse, b.Groups(coarse, curve, halvings, size, tail), 4, products);
    }
  }
  const int up = b.Up(coarse, down, 8);
  return b.Finish(b.Submanifold(b.RowNorm(b.Sum(up, fine), kernels::RowNorm::kLayerNorm, 1e-5f), 3, true));
}

class GroupsNetworkTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, GroupsNetworkTest, support::AllDevices(), support::DeviceName);

TEST_P(GroupsNetworkTest, NumbersOfSitesAroundAGroup) {
  constexpr int kSize = 8;
  uint32_t seed = 0;
  for (const int num_sites : {0, 1, kSize - 1, kSize, kSize + 1, 2 * kSize - 1, 2 * kSize, 2 * kSize + 1, 130}) {
    for (const GroupTail tail : {GroupTail::kBorrows, GroupTail::kShort}) {
      SCOPED_TRACE(num_sites);
      GraphBuilder b(++seed);
      const int stem = b.Submanifold(0, 8, true);
      const Curve curve = kCurves[seed % 4];
      const int attention = Block(b, stem, b.Groups(stem, curve, kOwnLevel, kSize, tail), 2);
      // The layers after attention must not be fused into it.
      const Graph graph = b.Finish(b.Linear(b.Relu(b.Norm(attention)), 3, true));
      ExpectEqual(GetParam(), graph, PointsOn(num_sites, kShape, seed));
    }
  }
}

TEST_P(GroupsNetworkTest, GroupsOfOneSiteReadTheirOwnValue) {
  GraphBuilder b(3);
  const int stem = b.Submanifold(0, 8, true);
  const int groups = b.Groups(stem, Curve::kHilbert, 0, 1, GroupTail::kBorrows);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.GroupAttention(stem, stem, stem, groups, 1, 1), 3, true)), 3);
}

TEST_P(GroupsNetworkTest, EveryCurveOnTwoLevels) {
  for (const GroupTail tail : {GroupTail::kBorrows, GroupTail::kShort}) {
    ExpectEqual(GetParam(), UNet(48, tail, Products::kLinear), PointsOn(1500, kWideShape, 11));
  }
}

// Nothing computes the values of the node whose sites are grouped.
TEST_P(GroupsNetworkTest, OfANodeThatNothingElseReads) {
  GraphBuilder b(4);
  const int stem = b.Submanifold(0, 8, true);
  const int groups = b.Groups(b.Down(stem, 5), Curve::kZTransposed, 0, 4, GroupTail::kShort);
  const int pooled = b.PoolDown(stem, kernels::PoolReduce::kMax);
  const int attention = b.GroupAttention(pooled, pooled, pooled, groups, 2, 0.5f);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Unpool(attention, pooled, kernels::PoolReduce::kSum), 3, true)), 4);
}

// The sites of the groups are those that scores keep, so the order is made in the second segment.
TEST_P(GroupsNetworkTest, BehindAPrune) {
  GraphBuilder b(5);
  const int stem = b.Submanifold(0, 8, true);
  const int pruned = b.Prune(stem, b.Linear(stem, 1, true), 0.05f);
  const int attention = Block(b, pruned, b.Groups(pruned, Curve::kHilbertTransposed, 0, 6, GroupTail::kBorrows), 1);
  ExpectEqual(GetParam(), b.Finish(b.Onto(attention, 0, 3)), PointsOn(100, kShape, 5));
}

TEST_P(GroupsNetworkTest, EqualOrdersAreMadeOnce) {
  GraphBuilder b(6);
  int trunk = b.Submanifold(0, 8, true);
  for (const int size : {4, 6}) {
    for (const GroupTail tail : {GroupTail::kBorrows, GroupTail::kShort}) {
      for (const Curve curve : {Curve::kZ, Curve::kHilbert}) {
        for (const int halvings : {kOwnLevel, 0})
          trunk = Block(b, trunk, b.Groups(trunk, curve, halvings, size, tail), 2);
      }
    }
  }
  const Graph graph = b.Finish(b.Linear(trunk, 3, true));
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  // On level 0 the voxels' depth is the level's own.
  EXPECT_EQ(program->orders.size(), 2u);
  ExpectEqual(GetParam(), graph, PointsOn(50, kShape, 6));
}

// Every sample has the same bytes alone, in batches, and in a second run by another context.
TEST_P(GroupsNetworkTest, ASampleIsInCompanyWhatItIsAlone) {
  const Graph graph = UNet(16, GroupTail::kBorrows, Products::kConvolutions);
  std::vector<PointCloud> clouds;
  for (const int num_sites : {0, 1, 15, 16, 17, 31, 32, 33, 2000}) {
    clouds.push_back(CloudOf(PointsOn(num_sites, kWideShape, static_cast<uint32_t>(num_sites))));
  }
  ExpectSameInCompany(GetParam(), graph, clouds, {{8, 0, 3, 8, 5}, {1, 8}, {0, 7, 6, 5, 4, 3, 2, 1, 0}});
}

TEST(GroupsOnCudaTest, OrdersOfTheCpuAreThoseOfTheGpu) {
  SKIP_WITHOUT(support::Device::kCuda);
  ExpectEqualWithMapsOfTheCpu(UNet(32, GroupTail::kBorrows, Products::kLinear));
}

}  // namespace
}  // namespace voxserve::groups_test
