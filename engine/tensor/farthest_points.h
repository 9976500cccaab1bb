#pragma once

// N farthest points of a cloud, as a request or a network asks for them. What they are:
// kernels/farthest_point_sample.h.

#include <cstdint>
#include <optional>

namespace voxserve {

struct FarthestPoints {
  uint64_t num_points = 0;   // N, above 0
  uint64_t start_index = 0;  // selected first, an index into the cloud; where it is invalid: the next valid one
  std::optional<uint64_t> seed = {};  // that draws the start instead
  bool restricts_network = false;     // the network sees these points alone
};

}  // namespace voxserve
