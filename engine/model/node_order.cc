#include "engine/model/node_order.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace voxserve {
namespace {

// Follows dependencies between unordered nodes until it reaches a node for the second time.
std::vector<int> FindCycle(const std::vector<std::vector<int>>& dependencies, const std::vector<bool>& is_ordered) {
  const auto first = std::find(is_ordered.begin(), is_ordered.end(), false);
  if (first == is_ordered.end()) return {};
  std::vector<int> path = {static_cast<int>(first - is_ordered.begin())};
  while (true) {
    const std::vector<int>& candidates = dependencies[path.back()];
    const int next = *std::find_if(candidates.begin(), candidates.end(), [&](int node) { return !is_ordered[node]; });
    const auto seen = std::find(path.begin(), path.end(), next);
    if (seen != path.end()) return {seen, path.end()};
    path.push_back(next);
  }
}

}  // namespace

NodeOrder OrderNodes(const std::vector<std::vector<int>>& dependencies) {
  const int num_nodes = static_cast<int>(dependencies.size());
  std::vector<std::vector<int>> dependents(num_nodes);
  std::vector<size_t> num_waiting_for(num_nodes);
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int node = 0; node < num_nodes; ++node) {
    num_waiting_for[node] = dependencies[node].size();
    for (const int dependency : dependencies[node]) dependents[dependency].push_back(node);
    if (dependencies[node].empty()) ready.push(node);
  }
  NodeOrder result;
  std::vector<bool> is_ordered(num_nodes, false);
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    result.order.push_back(node);
    is_ordered[node] = true;
    for (const int dependent : dependents[node]) {
      if (--num_waiting_for[dependent] == 0) ready.push(dependent);
    }
  }
  result.cycle = FindCycle(dependencies, is_ordered);
  return result;
}

}  // namespace voxserve
