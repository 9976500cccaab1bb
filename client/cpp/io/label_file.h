#pragma once

// Files with one label per point:
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

// The extension selects the format; only .npy and .label are allowed. bytes_per_label is 1 or 2 (for .npy).
absl::Status WriteLabels(const std::string& path, const std::vector<uint16_t>& labels, int bytes_per_label);

// INVALID_ARGUMENT, with both numbers, if the file does not hold num_points labels.
absl::StatusOr<std::vector<uint16_t>> ReadLabels(const std::string& path, uint64_t num_points);

// Returns true if WriteLabels knows the extension.
bool IsLabelFile(const std::string& path);

}  // namespace voxserve::client
