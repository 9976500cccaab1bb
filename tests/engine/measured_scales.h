#pragma once

// Gives networks rough scales for 8 bits, for tests and times of the engine. voxserve-calibrate finds better ones.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/graph.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve {

// Sets GraphNode::scale of each value that a layer may read in 8 bits (engine/compiler/int8_values.h): its largest
// magnitude on this cloud becomes the largest number.
absl::Status SetMeasuredScales(const PointCloud& cloud, Graph& graph);

// Returns the first nodes of the layers that usually stay in floats: of the first layer that may multiply in 8 bits,
// and of those whose values the head alone reads.
std::vector<std::string> FirstAndLastLayers(const Graph& graph);

}  // namespace voxserve
