#pragma once

// SiteCoordinates writes each site's coordinate to its row: column a is coordinate[a] * scale[a] + shift[a], in
// float32, rounded to the output's type in the end.

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
  Rows out;  // [sites, 1 to kMaxDimension axes]; the CPU only supports float32
};
static_assert(std::is_trivially_copyable_v<SiteCoordinatesParams>);

namespace cpu {

void SiteCoordinates(const SiteCoordinatesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t SiteCoordinates(const SiteCoordinatesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
