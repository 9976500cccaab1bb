#pragma once

#include <vector>

namespace voxserve {

struct NodeOrder {
  std::vector<int> order;  // the nodes that depend on no cycle, each after all nodes that it depends on
  std::vector<int> cycle;  // one cycle: each node depends on the next, and the last on the first; empty: there is none
};

// Orders nodes topologically. dependencies[i]: the nodes that node i depends on, all within range. Where several nodes
// could come next, the one with the smallest index does.
NodeOrder OrderNodes(const std::vector<std::vector<int>>& dependencies);

}  // namespace voxserve
