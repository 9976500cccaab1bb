// Tests OrderNodes, which sorts nodes topologically and finds cycles.

#include "engine/model/node_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace voxserve::node_order_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OrderNodesTest, NothingToOrder) {
  EXPECT_THAT(OrderNodes({}).order, IsEmpty());
  EXPECT_THAT(OrderNodes({}).cycle, IsEmpty());
}

TEST(OrderNodesTest, KeepsAnOrderThatIsRightAlready) {
  EXPECT_THAT(OrderNodes({{}, {0}, {0}, {1, 2}}).order, ElementsAre(0, 1, 2, 3));
}

TEST(OrderNodesTest, PutsDependenciesFirst) {
  EXPECT_THAT(OrderNodes({{3}, {0, 0}, {}, {2}}).order, ElementsAre(2, 3, 0, 1));
}

TEST(OrderNodesTest, NamesACycleAndOrdersTheRest) {
  // The nodes 1 -> 2 -> 4 -> 1 form a cycle. Node 3 depends on the cycle, node 0 on nothing.
  const NodeOrder order = OrderNodes({{}, {0, 2}, {4}, {1}, {1}});
  EXPECT_THAT(order.order, ElementsAre(0));
  EXPECT_THAT(order.cycle, ElementsAre(1, 2, 4));
}

TEST(OrderNodesTest, LeavesOutTheWayIntoTheCycle) { EXPECT_THAT(OrderNodes({{1}, {1}}).cycle, ElementsAre(1)); }

TEST(OrderNodesTest, RandomGraphsWithoutACycle) {
  std::mt19937 random(7);
  for (int repetition = 0; repetition < 50; ++repetition) {
    const int num_nodes = 30;
    std::vector<int> rank(num_nodes);  // node i may depend on nodes of lower rank
    for (int i = 0; i < num_nodes; ++i) rank[i] = i;
    std::shuffle(rank.begin(), rank.end(), random);
    std::vector<std::vector<int>> dependencies(num_nodes);
    for (int a = 0; a < num_nodes; ++a) {
      for (int b = 0; b < num_nodes; ++b) {
        if (rank[b] < rank[a] && random() % 8 == 0) dependencies[a].push_back(b);
      }
    }
    const NodeOrder order = OrderNodes(dependencies);
    ASSERT_EQ(order.order.size(), static_cast<size_t>(num_nodes));
    EXPECT_THAT(order.cycle, IsEmpty());
    std::vector<int> position(num_nodes, -1);
    for (int i = 0; i < num_nodes; ++i) position[order.order[i]] = i;
    for (int a = 0; a < num_nodes; ++a) {
      for (const int b : dependencies[a]) EXPECT_LT(position[b], position[a]);
    }
  }
}

}  // namespace
}  // namespace voxserve::node_order_test
