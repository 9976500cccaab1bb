#pragma once

// Files that hold their points field after field (compressed PCD, Fortran-ordered NPY) hold them point after point
// once read.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace voxserve::client {

// columns: for each width in widths, num_points values of that many bytes. Returns num_points rows of all widths; the
// caller has checked that columns has num_points * sum(widths) bytes.
std::string InterleaveColumns(absl::string_view columns, const std::vector<uint32_t>& widths, uint64_t num_points);

}  // namespace voxserve::client
