#pragma once

// Prepares a convolution's matrix products at start-up, before the first scan.
//
// Gemm takes some 50 us to choose an algorithm for a shape, and CUDA takes milliseconds to load a kernel at its first
// launch. A convolution's products have as many rows as its maps have pairs, so without this any scan could be the
// first to need one of them.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/gemm_cuda.h"

namespace voxserve::kernels {

struct GemmWarmUpParams {
  DType dtype = DType::kFloat32;
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t max_count = 1;     // most products of a group
  int64_t max_rows = 0;      // most rows of one product
  void* memory = nullptr;    // device memory, 256-byte aligned; its values are overwritten
  int64_t memory_bytes = 0;  // products that need more memory are left out
};
static_assert(std::is_trivially_copyable_v<GemmWarmUpParams>);

namespace cuda {

// Prepares the products of a convolution's groups (MultiplyGroups) for every number of rows.
cudaError_t WarmUpGemm(const GemmWarmUpParams& params, Gemm& gemm);

}  // namespace cuda
}  // namespace voxserve::kernels
