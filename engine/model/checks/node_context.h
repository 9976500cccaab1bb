#pragma once

// The node that is being checked, with everything that its operator's check may read and fill. Every check
// (operator_table.h) takes one. It lives as long as the check; what it refers to belongs to the validator.
//
// A node whose result is not known, for a problem of its own or of an input, has 0 channels. A node that reads it is
// then checked for its own parameters and tensors alone, so that one mistake is reported once.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "engine/model/weight_reader.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// The network's voxelize node, as far as it has been checked.
struct VoxelizeState {
  bool is_there = false;
  bool is_broken = false;  // it has a problem, so that the shape of its grid is not known
};

struct NodeContext {
  const model::v1::Node& proto;
  const ProblemsAt& at;   // reports problems of this node
  Graph& graph;           // the nodes before this one, and the levels and rulebooks so far
  WeightReader& weights;  // of the model
  VoxelizeState& voxelize;
  int partner = -1;  // index of the node in paired_with or sites_of; -1: none, or unknown, which has been reported
  GraphNode node;    // the check fills its op and what it computes
  // The node whose tensors it reads: itself, or that in weights_of; empty: wrong, which has been reported.
  std::string weights_owner = {};
  bool has_read_tensors = false;

  // The node that this input names; null where its result is not known.
  const GraphNode* Known(size_t input) const { return KnownNode(node.inputs[input]); }
  // The partner; null where there is none, or its result is not known.
  const GraphNode* KnownPartner() const { return KnownNode(partner); }
  // The node that this input names, where its result is known and holds features; else null, and a problem where the
  // result is known.
  const GraphNode* FeaturesInput(size_t input) const;
  // All inputs, with the same rows; empty, and a problem unless there was one before, otherwise.
  std::vector<const GraphNode*> FeaturesOnOneLevel() const;
  // The node's tensor of this name, or that of the node in weights_of (WeightReader::Read).
  HostTensorPtr ReadTensor(const std::string& part, const std::vector<int64_t>& shape) {
    has_read_tensors = true;
    return weights_owner.empty() ? nullptr : weights.Read(weights_owner, node.name, part, shape);
  }

 private:
  const GraphNode* KnownNode(int index) const {
    return index < 0 || graph.nodes[index].channels == 0 ? nullptr : &graph.nodes[index];
  }
};

// The kind of the node's rows, for messages: "a row a site".
const char* RowsText(const GraphNode& node);

// A grid's size, for messages: "188 x 376".
std::string SizeText(const GridShape& grid);

}  // namespace voxserve
