#pragma once

#include <vector>

namespace voxserve {

struct NodeOrder {
  std::vector<int> order;  // every node that depends on no cycle, after all that it depends on
  std::vector<int> cycle;  // one cycle, each node depending on the next and the last on the first; empty: there is none
};

// dependencies[i]: the nodes that node i depends on, all within range. Among nodes that could come next, the one with
// the smallest index does.
NodeOrder OrderNodes(const std::vector<std::vector<int>>& dependencies);

}  // namespace voxserve
