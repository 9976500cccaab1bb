#pragma once

// ReadPoses reads the poses of a sensor at the scans of a drive. The file is a text with one line per scan: an optional
// name FRAME, then the 12 values of the 3x4 matrix [R | t], row after row. The matrix converts the scan's coordinates
// to a fixed world frame; t is in metres. KITTI's poses.txt has no FRAME.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/stream.h"

namespace voxserve::client {

struct FramePose {
  std::string frame;  // "" if the line has none
  Pose pose;
};

// Returns the poses in the order of the lines. Returns the errors of ReadFile (file.h), and INVALID_ARGUMENT, which
// names the line, if a line has a wrong number of values, a value that is no number, or an R that is no rotation.
absl::StatusOr<std::vector<FramePose>> ReadPoses(const std::string& path);

}  // namespace voxserve::client
