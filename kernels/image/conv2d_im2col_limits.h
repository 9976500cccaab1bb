#pragma once

// These functions say which geometries Hopper's tensor copies in im2col mode can walk along (CUDA driver API,
// cuTensorMapEncodeIm2col; PTX, cp.async.bulk.tensor).

#include <cstddef>
#include <cstdint>

#include "kernels/image/conv2d_phase.h"

namespace voxserve::kernels {

// The maps of all phases are parameters of the kernel. A transposed convolution with stride 4 has this many.
inline constexpr int kMaxIm2colPhases = 16;

// The box of an axis in which the first cells of all positions lie, as distances from the image's ends.
struct Im2colBox {
  int64_t lower;
  int64_t upper;
};
constexpr Im2colBox Im2colBoxOf(const Conv2dPhase& phase, int32_t in_size) {
  return {phase.in_begin, phase.in_begin + int64_t{phase.num_outputs - 1} * phase.in_step - (in_size - 1)};
}

constexpr int32_t NumPhases(const Conv2dGeometry& geometry) { return NumPhases(geometry, 0) * NumPhases(geometry, 1); }

// Returns true if tensor copies can walk along an axis of a phase. Offsets of 4-D maps have 8 bits.
constexpr bool IsWithinIm2colLimits(const Conv2dPhase& phase, int32_t in_size) {
  if (in_size < 1 || phase.num_outputs < 1 || phase.num_cells < 1) return false;
  const Im2colBox box = Im2colBoxOf(phase, in_size);
  return box.lower >= -128 && box.lower <= 127 && box.upper >= -128 && box.upper <= 127 && phase.in_step <= 8 &&
         int64_t{phase.num_cells - 1} * phase.cell_reach <= 255;
}

// Returns true if tensor copies can gather the inputs of all phases. There are at most kMaxIm2colPhases.
constexpr bool IsWithinIm2colLimits(const Conv2dGeometry& geometry, int32_t in_rows, int32_t in_columns) {
  if (NumPhases(geometry) > kMaxIm2colPhases) return false;
  for (size_t axis = 0; axis < 2; ++axis) {
    const int32_t in_size = axis == 0 ? in_rows : in_columns;
    for (int32_t phase = 0; phase < NumPhases(geometry, axis); ++phase) {
      if (!IsWithinIm2colLimits(PhaseOf(geometry, axis, in_size, phase), in_size)) return false;
    }
  }
  return true;
}

}  // namespace voxserve::kernels
