#pragma once

// Sparse convolution by gather-GEMM-scatter on a GPU: out[o] = epilogue(sum over pairs (k, i, o) of in[i] W_k), as
// dense products between two passes of data movement (kernels/conv/gather_scatter.h).
//
// There is one gather for all offsets, one product per group of offsets (kernels/conv/matmul_grouping.h), and one
// scatter for all offsets, which applies the epilogue. The identity offset's product reads the input directly. Results
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
  bool is_symmetric = false;                 // a submanifold convolution in which offset K - 1 - k mirrors k
  const MatmulGrouping* grouping = nullptr;  // host: GroupMatmuls of these tables
  ConvOperands operands;      // out in in.dtype or float32; weights in the order of WalkOrder(K, is_symmetric)
  void* workspace = nullptr;  // GatherGemmScatterWorkspaceBytes, 256-byte aligned; the buffers hold in.dtype
};
static_assert(std::is_trivially_copyable_v<GatherGemmScatterParams>);

// Returns the workspace's size for these params, whose workspace may be null.
size_t GatherGemmScatterWorkspaceBytes(const GatherGemmScatterParams& params);

// Runs on `stream`; cudaErrorInvalidValue if `gemm` is bound to another stream.
cudaError_t GatherGemmScatter(const GatherGemmScatterParams& params, Gemm& gemm, cudaStream_t stream);

// Runs only the products between the two passes, on gemm's stream. The groups read `gathered` [num_gathered_rows,
// in_channels]; the identity offset reads the input. Products go to `products` [num_product_rows, out_channels].
// Output, epilogue and workspace of the params are not read.
cudaError_t MultiplyGroups(const GatherGemmScatterParams& params, const void* gathered, void* products, Gemm& gemm);

}  // namespace cuda
}  // namespace voxserve::kernels
