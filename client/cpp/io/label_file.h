#pragma once

// These functions read and write files with one label per point:
//
//   .npy     NumPy, uint8 or uint16 [N] (read: any unsigned or signed integer up to 4 bytes)
//  .label   SemanticKITTI: uint32 per point, the class in the low 16 bits
//  else     raw: one byte per point, or (only when reading) four as in .label
//
// Labels are in the order of the points.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace voxserve::client {

// Writes the labels; the path's extension selects the format. bytes_per_label: 1 or 2, for .npy only. Returns
// INVALID_ARGUMENT for any extension but .npy and .label.
absl::Status WriteLabels(const std::string& path, const std::vector<uint16_t>& labels, int bytes_per_label);

// Reads the labels. Returns INVALID_ARGUMENT, with the file's size and num_points, if the file does not hold num_points
// labels.
absl::StatusOr<std::vector<uint16_t>> ReadLabels(const std::string& path, uint64_t num_points);

// Returns true if WriteLabels knows the extension.
bool IsLabelFile(const std::string& path);

}  // namespace voxserve::client
