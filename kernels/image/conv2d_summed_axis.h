#pragma once

// Conv2dSummedAxis has the order in which a convolution of an image on a GPU (kernels/image/conv2d.h) has its weights.
// The kernels of warp groups also add up products in this order, so the choice among them does not change the results
// in 16 bits.

#include <cstdint>

namespace voxserve::kernels {

// The axis of (cell, channel) pairs over which a phase (conv2d_phase.h) sums. It is cut into chunks. If chunks divide
// the channels of a cell, a chunk of channels meets all cells, column by column, before the next chunk of channels
// does. So inputs that are in shared memory can serve the cells of a column one after the other
// (conv2d_boxes_kernel.cuh). Otherwise the axis has all channels of a cell before those of the next one, row by row.
struct Conv2dSummedAxis {
  int32_t num_cell_rows;
  int32_t num_cell_columns;
  int32_t cell_channels;
  int32_t chunk_channels;  // pairs of a chunk

  constexpr bool IsByChannels() const { return cell_channels % chunk_channels == 0; }

  // Returns the place of a pair on the axis. Channels may be counted in vectors, if cell_channels and chunk_channels
  // are.
  constexpr int32_t PlaceOf(int32_t cell_row, int32_t cell_column, int32_t channel) const {
    if (!IsByChannels()) return (cell_row * num_cell_columns + cell_column) * cell_channels + channel;
    const int32_t cells_before = channel / chunk_channels * num_cell_rows * num_cell_columns;
    return (cells_before + cell_column * num_cell_rows + cell_row) * chunk_channels + channel % chunk_channels;
  }
};

}  // namespace voxserve::kernels
