#pragma once

// Finds where the rows of a cloud begin. The Python library has the same rule in voxserve/row_layout.py.
//
// Drivers disagree about PointCloud2's row_step: it may be 0, the size of a point, or the size of the whole cloud. So
// the rule looks at the number of bytes first:
//
// 1. Bytes for exactly num_points points are packed: the rows follow each other without gaps. row_step is not read.
// 2. Other clouds have padding after each row: row_step is more than the size of a row, and the bytes are `height` rows
//    of row_step bytes, where the last row may lack its padding. A single row has less padding than a point: with more
//    room, its number of points is likely wrong.
// 3. Every other cloud is refused. So is a cloud of 0 points that has bytes.

#include <cstdint>

#include "absl/status/statusor.h"

namespace voxserve {

// The sizes that a cloud states, and the number of its bytes.
struct RowSizes {
  uint64_t num_points = 0;
  uint64_t height = 1;      // rows; 0 means 1
  uint64_t point_step = 0;  // bytes from one point to the next
  uint64_t row_step = 0;    // as the cloud states it; 0 if it states none
  uint64_t num_bytes = 0;
};

// Returns the number of bytes from one row to the next. Returns INVALID_ARGUMENT (BAD_LAYOUT), with the sizes, if they
// do not fit together. No product of the sizes overflows. Any thread may call it.
absl::StatusOr<uint64_t> RowStepOf(const RowSizes& sizes);

}  // namespace voxserve
