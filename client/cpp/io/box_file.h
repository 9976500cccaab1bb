#pragma once

// WriteBoxes writes boxes to a file, one row or object per box, in the order of the answer. The fields are those of
// Box: class_id, class_name, score, x, y, z, length, width, height (metres), yaw (radians), velocity_x, velocity_y
// (metres per second). If a box comes from a query, query is the last field, and -1 for a box without a query.
//
//   .json    an array of objects
//   .csv     a line with the names of the fields, then one line per box
//   .npy     NumPy, structured array [num_boxes]: class_id uint32, query int32, the others float32; no class_name

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/api/detections.h"

namespace voxserve::client {

// Writes the file; the path's extension selects the format. Returns INVALID_ARGUMENT for an unknown extension, and the
// errors of WriteFile (file.h).
absl::Status WriteBoxes(const std::string& path, const std::vector<Box>& boxes);

// Returns true if WriteBoxes knows the extension.
bool IsBoxFile(const std::string& path);

// Returns the array that a .json file holds.
nlohmann::ordered_json JsonOf(const std::vector<Box>& boxes);

}  // namespace voxserve::client
