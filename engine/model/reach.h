#pragma once

// Reach says how far the points that change an output of a network are from it. A program that cuts a cloud into tiles
// sends each tile with the points within the reach; the answers within the tile are then those of the whole cloud.
//
// ReachOf follows the graph from the voxels to the outputs. For each tensor it keeps how many voxels before and behind
// a row's position, on each axis, can change the row: a convolution adds its kernel's cells, in the unit of the finer
// level, and a level adds what decides which of its sites exist. An operator that reads all sites of a sample makes the
// reach infinite.
//
// The result is an upper bound from the network's structure alone. Weights that are 0 do not make it smaller, and it
// does not say how much a far point changes. It does not hold for requests from which points are dropped (voxel limits,
// samples of farthest points) or in which NaN or infinite values appear.
//
// Pure functions, for any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/graph.h"

namespace voxserve {

struct Reach {
  // By axis, in the unit of the cloud's coordinates: points that are farther away than this on any one axis do not
  // change a point's labels, scores and tensors. Infinity: there is no such distance. Always infinite for boxes, which
  // compete in non-maximum suppression.
  std::vector<float> distance;
  // The name of the first node that reads whole samples; "" if every distance is finite.
  std::string unbounded_by;
  // By axis, in voxels. Coordinates count from the smallest one of a cloud where the voxelize has ORIGIN_MINIMUM, so
  // the sites of coarse levels depend on it. Clouds whose minima differ by a multiple of this number have the same
  // sites. 1: the minimum does not matter. 0: every other minimum can change the answers.
  std::vector<int64_t> minimum_period;
};

Reach ReachOf(const Graph& graph);

}  // namespace voxserve
