#pragma once

// FarthestPoints says which sample of a cloud's points a request or a network asks for: N points that cover the cloud
// evenly (farthest point sampling). kernels/points/farthest/farthest_point_sample.h defines which points these are.

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

// Returns INVALID_ARGUMENT (BAD_SAMPLE) if a cloud of num_points points has fewer points than `asked` selects, or does
// not have its start_index. name: the name of `asked` in the message.
absl::Status CheckFarthestPoints(const std::string& name, const FarthestPoints& asked, int64_t num_points);

// Returns INVALID_ARGUMENT (BAD_SAMPLE) if a cloud with num_valid valid points, of num_points points in all, has fewer
// valid points than `asked` selects.
absl::Status CheckNumValid(const std::string& name, const FarthestPoints& asked, int64_t num_valid, int64_t num_points);

}  // namespace voxserve
