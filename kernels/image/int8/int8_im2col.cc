#include "kernels/image/int8/int8_im2col.h"

#include <cstddef>

#include "kernels/image/conv2d_im2col_limits.h"
#include "kernels/image/int8/int8_im2col_weights.h"

namespace voxserve::kernels {

bool IsForInt8Im2col(const Conv2dGeometry& geometry, int32_t in_rows, int32_t in_columns, int32_t in_channels) {
  constexpr int32_t kLeastChunk = 64;
  const int64_t num_products = int64_t{geometry.kernel_size[0]} * geometry.kernel_size[1] * in_channels;
  return geometry.groups == 1 && in_channels > 0 && in_channels % kLeastChunk == 0 &&
         num_products <= kMaxInt8Products && IsWithinIm2colLimits(geometry, in_rows, in_columns);
}

std::vector<int8_t> PackInt8Im2colWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                          const int8_t* weights) {
  const Int8Im2colWeights packed(geometry, in_channels, out_channels);
  const int32_t num_column_phases = NumPhases(geometry, 1);
  std::vector<int8_t> to(static_cast<size_t>(packed.PhaseBytes() * NumPhases(geometry)));
  int8_t* of_phase = to.data();
  for (int32_t phase = 0; phase < NumPhases(geometry); ++phase, of_phase += packed.PhaseBytes()) {
    // Which cells a phase has does not depend on the image's size.
    const Conv2dPhase rows = PhaseOf(geometry, 0, 1, phase / num_column_phases);
    const Conv2dPhase columns = PhaseOf(geometry, 1, 1, phase % num_column_phases);
    const Conv2dSummedAxis axis = packed.AxisOf(rows, columns, in_channels);
    for (int32_t cell = 0; cell < rows.num_cells * columns.num_cells; ++cell) {
      const int32_t cell_row = cell / columns.num_cells, cell_column = cell % columns.num_cells;
      const int32_t row = rows.first_cell + cell_row * rows.cell_step;
      const int32_t column = columns.first_cell + cell_column * columns.cell_step;
      const int8_t* from =
          weights + (int64_t{row} * geometry.kernel_size[1] + column) * in_channels * int64_t{out_channels};
      for (int32_t i = 0; i < in_channels; ++i) {
        for (int32_t o = 0; o < out_channels; ++o)
          of_phase[packed.PlaceOf(axis, cell_row, cell_column, i, o)] = *from++;
      }
    }
  }
  return to;
}

}  // namespace voxserve::kernels
