#pragma once

// Prepares the matrix products of a gather-GEMM-scatter convolution (kernels/conv/gather_gemm_scatter.h) at start-up,
// before the first scan.
//
// Gemm takes some 50 us to choose an algorithm for a shape, and CUDA takes milliseconds to load a kernel at its first
// launch. The number of rows of a product follows from the number of pairs of a kernel offset, which differs from scan
// to scan. So without preparation, any scan could be the first that needs some algorithm, and would wait for it.

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
  int64_t max_count = 1;     // the largest number of products in a group (MatmulGroup::count)
  int64_t max_rows = 0;      // the largest number of rows of one product
  void* memory = nullptr;    // device memory, 256-byte aligned; its values are overwritten
  int64_t memory_bytes = 0;  // products that need more memory are left out
};
static_assert(std::is_trivially_copyable_v<GemmWarmUpParams>);

namespace cuda {

// Prepares the products of MultiplyGroups for the numbers of rows to which Gemm rounds, from 16 to max_rows. It does so
// for groups of 1 to 8 products and of all even numbers of products above (larger groups have whole mirrored pairs).
// Groups of more than 2^20 rows in all are rare and are left out. Returns the errors of Gemm::Prepare.
cudaError_t WarmUpGemm(const GemmWarmUpParams& params, Gemm& gemm);

}  // namespace cuda
}  // namespace voxserve::kernels
