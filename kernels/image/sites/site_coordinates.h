#pragma once

// SiteCoordinates writes each site's coordinate to its row: column a is coordinate[a] * scale[a] + shift[a], in
// float32, rounded to the output's type in the end. With windows, the place in the site's window takes the coordinate's
// part: (coordinate + window_shift) mod window_shape, from 0 to window_shape - 1.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct SiteCoordinatesParams {
  const uint64_t* keys = nullptr;  // [sites] CoordinateKeys on the CPU, MortonKeys on a GPU
  float scale[kMaxDimension] = {1, 1, 1, 1};
  float shift[kMaxDimension] = {0, 0, 0, 0};
  Axes window_shape = {0, 0, 0, 0};  // sites; 0: the axis has no windows
  Axes window_shift = {0, 0, 0, 0};  // sites, 0 to the shape - 1
  Rows out;                          // [sites, 1 to kMaxDimension axes]; the CPU only supports float32
};
static_assert(std::is_trivially_copyable_v<SiteCoordinatesParams>);

// Returns a column of a site's row. coordinate: the site's on this axis.
constexpr float CoordinateColumn(const SiteCoordinatesParams& params, int axis, int32_t coordinate) {
  const auto at = static_cast<size_t>(axis);
  const int32_t shape = params.window_shape[at];
  if (shape > 0) {
    coordinate = (coordinate + params.window_shift[at]) % shape;
    if (coordinate < 0) coordinate += shape;
  }
  return static_cast<float>(coordinate) * params.scale[axis] + params.shift[axis];
}

namespace cpu {

void SiteCoordinates(const SiteCoordinatesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t SiteCoordinates(const SiteCoordinatesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
