#pragma once

// The layout of Int8Im2col's weights (int8_im2col.h): for each phase (conv2d_phase.h), chunks of padded_out_channels
// rows, in the order of Conv2dSummedAxis. A row has the chunk's input channels of one output channel, swizzled
// like a stage in shared memory. In every 32 rows, output channels stand in the order of PackedColumn
// (conv/implicit_gemm/slices.h), so that a thread holds the sums of eight neighbouring ones.

#include <cstdint>

#include "kernels/conv/implicit_gemm/slices.h"
#include "kernels/image/conv2d_phase.h"
#include "kernels/image/conv2d_summed_axis.h"

namespace voxserve::kernels {

struct Int8Im2colWeights {
  int32_t row_bytes;            // of a chunk, which are as many channels
  int32_t num_chunks;           // for which each phase has room
  int32_t padded_out_channels;  // rows of a chunk

  constexpr Int8Im2colWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels)
      : row_bytes(in_channels % 128 == 0 ? 128 : 64),
        num_chunks(MaxPhaseCells(geometry, 0) * MaxPhaseCells(geometry, 1) * (in_channels / row_bytes)),
        padded_out_channels(PaddedOutChannels(out_channels)) {}

  constexpr int64_t PhaseBytes() const { return int64_t{num_chunks} * padded_out_channels * row_bytes; }

  // Returns the order of the chunks of a phase.
  constexpr Conv2dSummedAxis AxisOf(const Conv2dPhase& rows, const Conv2dPhase& columns, int32_t in_channels) const {
    return {.num_cell_rows = rows.num_cells,
            .num_cell_columns = columns.num_cells,
            .cell_channels = in_channels,
            .chunk_channels = row_bytes};
  }

  // Returns the place of a weight within its phase, whose order is `axis`.
  constexpr int64_t PlaceOf(const Conv2dSummedAxis& axis, int32_t cell_row, int32_t cell_column, int32_t in_channel,
                            int32_t out_channel) const {
    const int32_t chunk = axis.PlaceOf(cell_row, cell_column, in_channel) / row_bytes;
    const int32_t row = PackedColumn(out_channel), byte = in_channel % row_bytes;
    // The 128-byte and the 64-byte swizzle (warp_group_products.cuh).
    const int32_t swizzle = row_bytes == 128 ? row % 8 : row / 2 % 4;
    constexpr int32_t kVector = 16;
    return (int64_t{chunk} * padded_out_channels + row) * row_bytes + ((byte / kVector) ^ swizzle) * kVector +
           byte % kVector;
  }
};

}  // namespace voxserve::kernels
