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
  // Both arguments must outlive the checker. graph->dimension must be set.
  NodeChecker(Graph* graph, WeightReader* weights) : graph_(*graph), weights_(*weights) {}

  // Appends exactly one node to the graph. inputs: the graph's indices of the input nodes, which have been checked.
  // partner: the index of the node in paired_with, sites_of or groups_of, -1 without these fields. An input or partner
  // that does not exist, or that stands in a cycle, has been reported before and is -1. weights_owner: see NodeContext.
  void Check(const model::v1::Node& proto, std::vector<int> inputs, int partner, const std::string& weights_owner,
             const ProblemsAt& at);

  bool has_voxelize() const { return voxelize_.is_there; }

 private:
  Graph& graph_;
  WeightReader& weights_;
  VoxelizeState voxelize_;
};

}  // namespace voxserve
