#pragma once

// Sparse convolution by gather-GEMM-scatter on a GPU: out[o] = epilogue(sum over pairs (k, i, o) of in[i] W_k). Dense
// matrix products (gemm_cuda.h) are computed between two passes that copy rows (kernels/conv/gather_scatter.h).
//
// There is one gather for all kernel offsets, one batch of matrix products per group of offsets
// (kernels/conv/matmul_grouping.h), and one scatter for all offsets, which applies the epilogue. The product of the
// identity offset, which pairs each output row with the input row of the same number, reads the input directly. Results
// are deterministic.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/conv/conv_operands.h"
#include "kernels/conv/gather_scatter.h"
#include "kernels/conv/matmul_grouping.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

namespace cuda {

class Gemm;

struct GatherGemmScatterParams {
  PairTablesView tables;
  bool is_symmetric = false;                 // true for a submanifold convolution whose offset K - 1 - k mirrors k
  const MatmulGrouping* grouping = nullptr;  // in host memory: the result of GroupMatmuls for these tables
  ConvOperands operands;  // `out` in in.dtype or float32; `weights` in the order of WalkOrder(K, is_symmetric)
  // GatherGemmScatterWorkspaceBytes(*this) of device memory, 256-byte aligned. The workspace holds the gathered rows
  // and the products of these rows, both in in.dtype.
  void* workspace = nullptr;
};
static_assert(std::is_trivially_copyable_v<GatherGemmScatterParams>);

// Returns the size of the workspace for these params. params.workspace itself is not read and may be null.
size_t GatherGemmScatterWorkspaceBytes(const GatherGemmScatterParams& params);

// Runs the convolution on `stream`. Returns cudaErrorInvalidValue in these cases:
// - `gemm` is bound to another stream.
// - There are more than kMaxKernelVolume offsets, or 2^31 or more rows in the product buffer.
// - is_symmetric is true, and the identity offset is not the centre.
cudaError_t GatherGemmScatter(const GatherGemmScatterParams& params, Gemm& gemm, cudaStream_t stream);

// Runs only the matrix products between gather and scatter, on gemm's stream; benchmarks call it. The products of the
// groups read `gathered` [num_gathered_rows, in_channels]; the product of the identity offset reads the input. All
// products write to `products` [num_product_rows, out_channels]. Both buffers hold in.dtype. The params' workspace,
// epilogue and output values are not used.
cudaError_t MultiplyGroups(const GatherGemmScatterParams& params, const void* gathered, void* products, Gemm& gemm);

}  // namespace cuda
}  // namespace voxserve::kernels
