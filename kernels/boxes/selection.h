#pragma once

// A selection is a row of float32 values for each query: a pair (class, cell) that SelectPeaks chose from an image of
// scores. GatherQueries and DecodeQueries read such rows. Every sample has the same number of rows, k. They are ordered
// as select_peaks.h says; a query's number is its row in its sample.

#include <cstdint>

namespace voxserve::kernels {

// All but the score are whole numbers, which float32 holds exactly up to kMaxSelectionSide.
enum SelectionColumn : int32_t {
  kSelectedRow = 0,  // of the cell in the image
  kSelectedColumn,
  kSelectedClass,  // the channel of the image
  kSelectedScore,  // 0 to 1; 0 where the pair is no peak
};
inline constexpr int32_t kSelectionColumns = 4;  // also the values from row to row

inline constexpr int32_t kMaxQueries = 1024;                    // of a sample
inline constexpr int32_t kMaxSelectionSide = int32_t{1} << 24;  // rows or columns of an image

}  // namespace voxserve::kernels
