#pragma once

// Keeps some of a level's sites, in their order: those within bounds whose score, if scores are given, is above a
// threshold. NaN is never above it.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

// These bounds admit every site: coordinates stay below the largest number.
inline constexpr Axes kLowestSite = {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::min(),
                                     std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::min()};
inline constexpr Axes kBeyondSites = {std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max(),
                                      std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max()};

struct SiteFilterParams {
  int32_t dimension = 3;
  Axes lower = kLowestSite;  // lower <= c < upper on every axis
  Axes upper = kBeyondSites;
  ConstRows scores;  // one row per site with one channel; float32 only on the CPU; null data: no test
  float threshold = 0;

  const uint64_t* in_keys = nullptr;       // [num_in] CoordinateKeys on the CPU, MortonKeys on the GPU
  int64_t num_in = 0;                      // below 2^31
  const int64_t* device_num_in = nullptr;  // cuda: the number of in_keys, on the device; num_in is then the capacity

  // Output.
  uint64_t* out_keys = nullptr;  // [num_out of num_in]
  int64_t* num_out = nullptr;    // [1]

  void* workspace = nullptr;  // cuda: SiteFilterWorkspaceBytes(*this), 256-byte aligned, any contents
};
static_assert(std::is_trivially_copyable_v<SiteFilterParams>);

namespace cpu {

void SiteFilter(const SiteFilterParams& params);

}  // namespace cpu

namespace cuda {

// Asks CUB, so it needs a device. Depends only on num_in.
size_t SiteFilterWorkspaceBytes(const SiteFilterParams& params);

cudaError_t SiteFilter(const SiteFilterParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
