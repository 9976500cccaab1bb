#pragma once

// Boxes in files, a row or an object a box, in the answer's order. Fields are those of Box: class_id, class_name,
// score, x, y, z, length, width, height (metres), yaw (radians), velocity_x, velocity_y (metres a second).
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

// By the extension; any other is refused.
absl::Status WriteBoxes(const std::string& path, const std::vector<Box>& boxes);

// Whether WriteBoxes knows the extension.
bool IsBoxFile(const std::string& path);

nlohmann::ordered_json JsonOf(const std::vector<Box>& boxes);

}  // namespace voxserve::client
