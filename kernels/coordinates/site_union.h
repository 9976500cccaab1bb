#pragma once

// The union of the sites of two levels: sorted, unique, separately for each sample. Keys are CoordinateKeys on the CPU
// and MortonKeys on the GPU; both are ordered as whole words.
//
// The GPU needs no sort, since it computes ranks. A key of A comes behind the keys of A before it and the keys of B
// that are below it and not in A. A key of B that is not in A is placed in the same way.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

struct SiteUnionParams {
  const uint64_t* a_keys = nullptr;  // [num_a] ascending, unique
  int64_t num_a = 0;
  const int64_t* device_num_a = nullptr;  // cuda: the number of a_keys, on the device; num_a is then the capacity
  const uint64_t* b_keys = nullptr;       // [num_b] ascending, unique
  int64_t num_b = 0;
  const int64_t* device_num_b = nullptr;

  // Output. The caller checks that num_a + num_b is below 2^31.
  uint64_t* out_keys = nullptr;  // [num_out of num_a + num_b]
  int64_t* num_out = nullptr;    // [1]

  void* workspace = nullptr;  // cuda: SiteUnionWorkspaceBytes(*this), 256-byte aligned, any contents
};
static_assert(std::is_trivially_copyable_v<SiteUnionParams>);

namespace cpu {

void SiteUnion(const SiteUnionParams& params);

}  // namespace cpu

namespace cuda {

// Asks CUB, so it needs a device. Depends only on num_b.
size_t SiteUnionWorkspaceBytes(const SiteUnionParams& params);

cudaError_t SiteUnion(const SiteUnionParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
