#pragma once

// Reads the poses of a sensor at the scans of a drive: a text with one line per scan, [FRAME] and the 12 values of the
// 3x4 matrix [R | t], row after row. The matrix takes the scan's coordinates to a frame that does not move; t is in
// metres. KITTI's poses.txt has no FRAME.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/stream.h"

namespace voxserve::client {

struct FramePose {
  std::string frame;  // "" if the file has none
  Pose pose;
};

// NOT_FOUND; INVALID_ARGUMENT, which names the line with a wrong number of values, with a value that is no number, or
// with a matrix that is no rotation.
absl::StatusOr<std::vector<FramePose>> ReadPoses(const std::string& path);

}  // namespace voxserve::client
