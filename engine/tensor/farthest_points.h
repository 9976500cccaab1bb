#pragma once

// N farthest points of a cloud, as a request, a network or a caller asks for them. What they are:
// kernels/points/farthest/farthest_point_sample.h.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace voxserve {

struct FarthestPoints {
  uint64_t num_points = 0;   // N
  uint64_t start_index = 0;  // selected first, an index into the cloud; where it is invalid: the next valid one
  std::optional<uint64_t> seed = {};  // that draws the start instead
  bool restricts_network = false;     // the network sees these points alone
};

// INVALID_ARGUMENT (BAD_SAMPLE) where a cloud of so many points does not have what is asked for. `name` is what the
// message calls `asked`.
absl::Status CheckFarthestPoints(const std::string& name, const FarthestPoints& asked, int64_t num_points);

// The same once it is known how many of the points are valid.
absl::Status CheckNumValid(const std::string& name, const FarthestPoints& asked, int64_t num_valid, int64_t num_points);

}  // namespace voxserve
