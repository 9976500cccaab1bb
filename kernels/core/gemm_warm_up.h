#pragma once

// Gemm chooses an algorithm for each shape, which takes some 50 us, and CUDA loads its kernel when it is launched
// first, which takes milliseconds. A convolution's products have as many rows as its maps have pairs, so that any scan
// may be the first to need one of them: here they are all prepared before there is a scan.

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
  int64_t max_count = 1;     // products of a group, at most
  int64_t max_rows = 0;      // of one of them
  void* memory = nullptr;    // on the device, 256-byte aligned; its values are of no matter and are overwritten
  int64_t memory_bytes = 0;  // larger products than fit are left out
};
static_assert(std::is_trivially_copyable_v<GemmWarmUpParams>);

namespace cuda {

// The products of a convolution's groups (MultiplyGroups), of every number of rows.
cudaError_t WarmUpGemm(const GemmWarmUpParams& params, Gemm& gemm);

}  // namespace cuda
}  // namespace voxserve::kernels
