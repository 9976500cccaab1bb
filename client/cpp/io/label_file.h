#pragma once

// A label per point, in files:
//
//   .npy     NumPy, uint8 or uint16 [N] (read: any unsigned or signed integer up to 4 bytes)
//   .label   SemanticKITTI: uint32 a point, the class in the low 16 bits
//   else     raw: one byte a point, or (read only) four as .label
//
// What stands in the points' order stays in it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace voxserve::client {

// By the extension; anything else than .npy and .label is refused. bytes_per_label is 1 or 2 (of .npy).
absl::Status WriteLabels(const std::string& path, const std::vector<uint16_t>& labels, int bytes_per_label);

// INVALID_ARGUMENT naming both numbers where the file does not hold num_points labels.
absl::StatusOr<std::vector<uint16_t>> ReadLabels(const std::string& path, uint64_t num_points);

// Whether WriteLabels knows the extension.
bool IsLabelFile(const std::string& path);

}  // namespace voxserve::client
