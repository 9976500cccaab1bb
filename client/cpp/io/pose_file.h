#pragma once

// Where a sensor was at each scan of a drive: a text of one line a scan, [FRAME] then the 12 values of the 3x4 matrix
// [R | t] that takes the scan's coordinates to a frame that stands still, row after row (KITTI's poses.txt has no
// FRAME; t is in metres).

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/stream.h"

namespace voxserve::client {

struct FramePose {
  std::string frame;  // "" in a file without
  Pose pose;
};

// NOT_FOUND; INVALID_ARGUMENT naming the line: another number of values, no numbers, or a matrix that is no rotation.
absl::StatusOr<std::vector<FramePose>> ReadPoses(const std::string& path);

}  // namespace voxserve::client
