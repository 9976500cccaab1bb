#pragma once

// NodeChecker checks one node after the other, in topological order, and appends it to the graph. It checks parameters,
// inputs, channels, coordinate levels and tensors. graph_validator.cc uses it. operator_table.h says how each operator
// is checked.

#include <string>
#include <vector>

#include "engine/model/checks/node_context.h"
#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "engine/model/weight_reader.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

class NodeChecker {
 public:
  // Both outlive the checker. graph->dimension is set.
  NodeChecker(Graph* graph, WeightReader* weights) : graph_(*graph), weights_(*weights) {}

  // Appends exactly one node to the graph. inputs and partner (of one with paired_with or sites_of) are indices of
  // nodes that have been checked, -1 for those that do not exist or stand in a cycle, which has been reported.
  // weights_owner: see NodeContext.
  void Check(const model::v1::Node& proto, std::vector<int> inputs, int partner, const std::string& weights_owner,
             const ProblemsAt& at);

  bool has_voxelize() const { return voxelize_.is_there; }

 private:
  Graph& graph_;
  WeightReader& weights_;
  VoxelizeState voxelize_;
};

}  // namespace voxserve
