#pragma once

// SiteFilter keeps the sites of a level that lie within bounds and, if scores are given, whose score is above a
// threshold. NaN is not above any threshold. The kept sites stay in their order.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

// These default bounds admit every site: no coordinate equals the largest int32.
inline constexpr Axes kLowestSite = {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::min(),
                                     std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::min()};
inline constexpr Axes kBeyondSites = {std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max(),
                                      std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max()};

struct SiteFilterParams {
  int32_t dimension = 3;
  Axes lower = kLowestSite;  // lower <= c < upper on every axis
  Axes upper = kBeyondSites;
  ConstRows scores;  // one row per site with one channel; the CPU only supports float32; null data: no score is tested
  float threshold = 0;

  const uint64_t* in_keys = nullptr;  // [num_in] CoordinateKeys on the CPU, MortonKeys on the GPU
  int64_t num_in = 0;                 // below 2^31
  // CUDA only: [1] the number of in_keys, in device memory; num_in is then the capacity. Null: num_in keys exist.
  const int64_t* device_num_in = nullptr;

  // Output.
  uint64_t* out_keys = nullptr;  // [num_in]; the first num_out are written
  int64_t* num_out = nullptr;    // [1]

  void* workspace = nullptr;  // CUDA only: SiteFilterWorkspaceBytes(*this), 256-byte aligned, any contents
};
static_assert(std::is_trivially_copyable_v<SiteFilterParams>);

namespace cpu {

void SiteFilter(const SiteFilterParams& params);

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. This function asks CUB, so it needs a device. The result depends only on
// num_in.
size_t SiteFilterWorkspaceBytes(const SiteFilterParams& params);

cudaError_t SiteFilter(const SiteFilterParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
