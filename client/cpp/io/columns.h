#pragma once

// InterleaveColumns converts points that a file stores field after field (compressed PCD, Fortran-ordered NPY) to
// points that lie one after the other.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace voxserve::client {

// columns: for each width in widths, num_points values of that many bytes. Returns num_points rows with one value of
// every width. The caller must check that columns has num_points * sum(widths) bytes.
std::string InterleaveColumns(absl::string_view columns, const std::vector<uint32_t>& widths, uint64_t num_points);

}  // namespace voxserve::client
