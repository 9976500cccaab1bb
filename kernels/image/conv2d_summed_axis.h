#pragma once

// Conv2dSummedAxis has the order in which a convolution of an image adds up its products on a GPU
// (kernels/image/conv2d.h). All kernels share it, so the choice among them does not change the results.

#include <cstdint>

namespace voxserve::kernels {

// The axis of (cell, channel) pairs over which a phase (conv2d_phase.h) sums. It is cut into chunks. If chunks divide
// the channels of a cell, a chunk of channels meets all cells, column by column, before the next chunk of channels
// does. So inputs that are in shared memory can serve the cells of a column one after the other
// (conv2d_boxes_kernel.cuh). Otherwise the axis has all channels of a cell before those of the next one, row by row.
struct Conv2dSummedAxis {
  int32_t row_cells;
  int32_t column_cells;
  int32_t cell_channels;
  int32_t chunk_channels;  // pairs of a chunk

  constexpr bool IsByChannels() const { return cell_channels % chunk_channels == 0; }

  constexpr int32_t PlaceOf(int32_t cell_row, int32_t cell_column, int32_t channel) const {
    if (!IsByChannels()) return (cell_row * column_cells + cell_column) * cell_channels + channel;
    const int32_t cells_before = channel / chunk_channels * row_cells * column_cells;
    return (cells_before + cell_column * row_cells + cell_row) * chunk_channels + channel % chunk_channels;
  }
};

}  // namespace voxserve::kernels
