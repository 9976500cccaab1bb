#pragma once

// A tensor's level says which rows it has: the id of a coordinate level, whose sites are the rows, or one of the values
// below.

namespace voxserve {

// kSampleLevel: every sample of the batch has the same number of rows: one row, the cells of an image, or a list of
// boxes.
inline constexpr int kSampleLevel = -1;
inline constexpr int kPointLevel = -2;  // one row for every point of the batch

}  // namespace voxserve
