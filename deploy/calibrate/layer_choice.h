#pragma once

// These functions choose which layers of a network multiply in 8 bits, and which stay in float.

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/calibrate/scales.h"
#include "engine/compiler/int8_values.h"
#include "engine/model/graph.h"

namespace voxserve::calibrate {

// A layer that could multiply in 8 bits.
struct LayerChoice {
  std::string node;       // the first node's name, as Int8Options::float_nodes names layers
  std::string value;      // the result node's name
  std::string why_float;  // why the layer stays in float: "first", "last", "named", ...; "": it multiplies in 8 bits
  int in_channels = 0;
  int out_channels = 0;
  // These say how the answers change if this layer alone multiplies in 8 bits (agreement.h).
  bool is_measured = false;  // false: the two below are not known
  double disagreement = 0;   // 1 - the share that agrees
  double error = 0;
};

// Returns all candidates in the graph's order. float_nodes: a list that commas separate, of layers that stay in float:
// names of first nodes, "first" for layers that read no other candidate's values, however far away, and "last" for
// those whose values no other candidate reads. Returns INVALID_ARGUMENT if no candidate has a name of the list (the
// message lists the candidates), or if there is no candidate at all.
absl::StatusOr<std::vector<LayerChoice>> ChooseLayers(const Graph& graph, const Int8Candidates& candidates,
                                                      const std::string& float_nodes);

// Returns the names of the values that layers in 8 bits read.
std::set<std::string> NeededScales(const Graph& graph, const Int8Candidates& candidates,
                                   const std::vector<LayerChoice>& layers);

// Keeps the layers in float that lack the scale of an input.
void LeaveWithoutScales(const Graph& graph, const Int8Candidates& candidates, const Scales& scales,
                        std::vector<LayerChoice>* layers);

// Returns the nodes of the layers that stay in float.
std::vector<std::string> FloatNodes(const std::vector<LayerChoice>& layers);

// Returns the index of the layer in 8 bits that costs most: with the largest disagreement, and of those the largest
// error; -1: none is in 8 bits.
int WorstLayer(const std::vector<LayerChoice>& layers);

}  // namespace voxserve::calibrate
