#pragma once

// Which rows a tensor has: those of a coordinate level's sites, by its id, or one of these.

namespace voxserve {

// The same number of rows for every sample of the batch: 1, an image's cells, boxes.
inline constexpr int kSampleLevel = -1;
inline constexpr int kPointLevel = -2;  // a row for every point of the batch

}  // namespace voxserve
