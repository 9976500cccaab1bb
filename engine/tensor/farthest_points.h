#pragma once

// FarthestPoints says which sample of a cloud's points a request or a network asks for: N points that cover the cloud
// evenly (farthest point sampling). kernels/points/farthest/farthest_point_sample.h defines which points these are.

#include <cstdint>
#include <optional>

namespace voxserve {

struct FarthestPoints {
  uint64_t num_points = 0;   // N
  uint64_t start_index = 0;  // index of the first selected point; if it is invalid, the next valid point is taken
  std::optional<uint64_t> seed = {};  // if set, it draws the start at random
  bool restricts_network = false;     // the network sees only these points
};

}  // namespace voxserve
