#pragma once

// NodeContext holds the node that is being checked, and everything that its operator's check may read and fill. Every
// check (operator_table.h) takes one. It lives as long as the check; the objects that it refers to belong to the
// validator.
//
// If a node or one of its inputs has a problem, the node's result is not known, and the node has 0 channels. If a
// node reads such a result, only the node's own parameters and tensors are checked, so that one mistake is reported
// once.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "engine/model/weight_reader.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// The state of the network's voxelize node.
struct VoxelizeState {
  bool is_there = false;
  bool is_broken = false;  // it has a problem, so that the shape of its grid is not known
};

struct NodeContext {
  const model::v1::Node& proto;
  const ProblemsAt& at;   // reports problems of this node
  Graph& graph;           // the nodes before this one, and the levels and rulebooks so far
  WeightReader& weights;  // reads the model's tensors
  VoxelizeState& voxelize;
  // Index of the node in paired_with, sites_of or groups_of; -1: none, or unknown, which has been reported.
  int partner = -1;
  GraphNode node;  // the check fills its op and what it computes
  // The name of the node whose tensors this node reads: its own, or the one in weights_of. Empty: weights_of is wrong,
  // which has been reported.
  std::string weights_owner = {};
  bool has_read_tensors = false;

  // Returns the node that this input names; null where its result is not known.
  const GraphNode* Known(size_t input) const { return KnownNode(node.inputs[input]); }
  // Returns the partner; null where there is none, or its result is not known.
  const GraphNode* KnownPartner() const { return KnownNode(partner); }
  // Returns the node that this input names, if its result is features. Returns null if the result is not known. Returns
  // null and reports a problem if the result is labels, boxes, queries or a sample of points.
  const GraphNode* FeaturesInput(size_t input) const;
  // Returns all inputs if they hold features and have the same rows. Otherwise returns an empty list, and reports a
  // problem unless an input's problem was reported before.
  std::vector<const GraphNode*> FeaturesOnOneLevel() const;
  // Returns the tensor "<weights_owner>.<part>" (WeightReader::Read); null if weights_of is wrong.
  HostTensorPtr ReadTensor(const std::string& part, const std::vector<int64_t>& shape) {
    has_read_tensors = true;
    return weights_owner.empty() ? nullptr : weights.Read(weights_owner, node.name, part, shape);
  }

 private:
  const GraphNode* KnownNode(int index) const {
    return index < 0 || graph.nodes[index].channels == 0 ? nullptr : &graph.nodes[index];
  }
};

// Returns the kind of the node's rows for messages: "one row per site".
const char* RowsText(const GraphNode& node);

// Returns a grid's size for messages: "188 x 376".
std::string SizeText(const GridShape& grid);

}  // namespace voxserve
