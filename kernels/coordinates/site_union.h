#pragma once

// The sites of two levels together: sorted, unique, each sample's own. Keys are CoordinateKeys on the CPU and
// MortonKeys on the GPU, whose orders both are those of whole words.
//
// On the GPU without a sort, by rank: a key of A goes behind the keys of A before it and those keys of B that are below
// it and not in A; one of B that is not in A likewise.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

struct SiteUnionParams {
  const uint64_t* a_keys = nullptr;  // [num_a] ascending, unique
  int64_t num_a = 0;
  const int64_t* device_num_a = nullptr;  // cuda: their number, on the device; num_a is then their capacity
  const uint64_t* b_keys = nullptr;       // likewise
  int64_t num_b = 0;
  const int64_t* device_num_b = nullptr;

  // Output. num_a + num_b is below 2^31, which the caller checks.
  uint64_t* out_keys = nullptr;  // [num_out of num_a + num_b]
  int64_t* num_out = nullptr;    // [1]

  void* workspace = nullptr;  // cuda: SiteUnionWorkspaceBytes(*this), 256-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<SiteUnionParams>);

namespace cpu {

void SiteUnion(const SiteUnionParams& params);

}  // namespace cpu

namespace cuda {

// Asks CUB, and so needs a device. Of num_b alone.
size_t SiteUnionWorkspaceBytes(const SiteUnionParams& params);

cudaError_t SiteUnion(const SiteUnionParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
