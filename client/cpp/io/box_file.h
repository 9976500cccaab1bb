#pragma once

// Writes boxes to files, one row or object per box, in the answer's order. The fields are those of Box: class_id,
// class_name, score, x, y, z, length, width, height (metres), yaw (radians), velocity_x, velocity_y (metres per
// second).
//
//   .json    an array of objects
//   .csv     a line of names, then one a box
//   .npy     NumPy, structured [N]: class_id uint32, the others float32; without class_name

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/api/detections.h"

namespace voxserve::client {

// The extension selects the format; unknown ones are refused.
absl::Status WriteBoxes(const std::string& path, const std::vector<Box>& boxes);

// Returns true if WriteBoxes knows the extension.
bool IsBoxFile(const std::string& path);

nlohmann::ordered_json JsonOf(const std::vector<Box>& boxes);

}  // namespace voxserve::client
