#pragma once

// SiteUnion computes the union of the sites of two levels, A and B: a sorted list of unique keys. Keys are
// CoordinateKeys on the CPU and MortonKeys on the GPU. Both contain the sample, so comparing words is enough.
//
// The GPU does not sort, but computes each key's row: the number of smaller keys in A plus the number of smaller keys
// in B that are not in A. A key that is in A and in B is written once.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

struct SiteUnionParams {
  const uint64_t* a_keys = nullptr;  // [num_a] ascending, unique
  int64_t num_a = 0;
  // CUDA only: [1] the number of a_keys, in device memory; num_a is then the capacity. Null: num_a keys exist.
  // device_num_b is the same for b_keys.
  const int64_t* device_num_a = nullptr;
  const uint64_t* b_keys = nullptr;  // [num_b] ascending, unique
  int64_t num_b = 0;
  const int64_t* device_num_b = nullptr;

  // Output. The caller checks that num_a + num_b is below 2^31.
  uint64_t* out_keys = nullptr;  // [num_a + num_b]; the first num_out are written
  int64_t* num_out = nullptr;    // [1]

  void* workspace = nullptr;  // CUDA only: SiteUnionWorkspaceBytes(*this), 256-byte aligned, any contents
};
static_assert(std::is_trivially_copyable_v<SiteUnionParams>);

namespace cpu {

void SiteUnion(const SiteUnionParams& params);

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. This function asks CUB, so it needs a device. The result depends only on
// num_b.
size_t SiteUnionWorkspaceBytes(const SiteUnionParams& params);

cudaError_t SiteUnion(const SiteUnionParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
