#pragma once

// N farthest points of a cloud, as a request or a network asks for them.
// kernels/points/farthest/farthest_point_sample.h defines them.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace voxserve {

struct FarthestPoints {
  uint64_t num_points = 0;   // N
  uint64_t start_index = 0;  // index of the first selected point; if it is invalid, the next valid point is taken
  std::optional<uint64_t> seed = {};  // if set, it draws the start at random
  bool restricts_network = false;     // the network sees only these points
};

// INVALID_ARGUMENT (BAD_SAMPLE) if a cloud of num_points points cannot fulfil `asked`. The message calls `asked` by
// `name`.
absl::Status CheckFarthestPoints(const std::string& name, const FarthestPoints& asked, int64_t num_points);

// Checks the same when the number of valid points is known.
absl::Status CheckNumValid(const std::string& name, const FarthestPoints& asked, int64_t num_valid, int64_t num_points);

}  // namespace voxserve
