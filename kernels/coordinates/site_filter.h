#pragma once

// Some of a level's sites, in the order in which they stand: those within bounds, and of those, where scores are given,
// the ones whose score is above a threshold. NaN is above nothing.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

// No bounds: coordinates stay below the largest number.
inline constexpr Axes kLowestSite = {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::min(),
                                     std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::min()};
inline constexpr Axes kBeyondSites = {std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max(),
                                      std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max()};

struct SiteFilterParams {
  int32_t dimension = 3;
  Axes lower = kLowestSite;  // lower <= c < upper on every axis
  Axes upper = kBeyondSites;
  ConstRows scores;  // a row a site, of one channel; the CPU has float32 alone. Null data: all are above the threshold
  float threshold = 0;

  const uint64_t* in_keys = nullptr;       // [num_in] CoordinateKeys on the CPU, MortonKeys on the GPU
  int64_t num_in = 0;                      // below 2^31
  const int64_t* device_num_in = nullptr;  // cuda: their number, on the device; num_in is then their capacity

  // Output.
  uint64_t* out_keys = nullptr;  // [num_out of num_in]
  int64_t* num_out = nullptr;    // [1]

  void* workspace = nullptr;  // cuda: SiteFilterWorkspaceBytes(*this), 256-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<SiteFilterParams>);

namespace cpu {

void SiteFilter(const SiteFilterParams& params);

}  // namespace cpu

namespace cuda {

// Asks CUB, and so needs a device. Of num_in alone.
size_t SiteFilterWorkspaceBytes(const SiteFilterParams& params);

cudaError_t SiteFilter(const SiteFilterParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
