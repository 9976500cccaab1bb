#pragma once

// Sparse convolution by gather-GEMM-scatter: out[o] = epilogue(sum over pairs (k, i, o) of in[i] W_k), with dense
// products between two passes of data movement (kernels/conv/gather_scatter.h), on a GPU.
//
// There is one gather for all offsets, one product per group of offsets (kernels/conv/matmul_grouping.h), and one
// scatter for all with the epilogue. The identity offset's product reads the input itself. Deterministic.

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
  bool is_symmetric = false;                 // a submanifold convolution whose offset K - 1 - k mirrors k
  const MatmulGrouping* grouping = nullptr;  // host: GroupMatmuls of these tables
  ConvOperands operands;      // out in in.dtype or float32; weights in the order of WalkOrder(K, is_symmetric)
  void* workspace = nullptr;  // GatherGemmScatterWorkspaceBytes, 256-byte aligned; buffers are in in.dtype
};
static_assert(std::is_trivially_copyable_v<GatherGemmScatterParams>);

// Of the same params with a null workspace.
size_t GatherGemmScatterWorkspaceBytes(const GatherGemmScatterParams& params);

// On the stream that `gemm` is bound to; cudaErrorInvalidValue for another.
cudaError_t GatherGemmScatter(const GatherGemmScatterParams& params, Gemm& gemm, cudaStream_t stream);

// The products between the two passes alone: those of the groups from `gathered` [num_gathered_rows, in_channels], the
// identity's from the input, to `products` [num_product_rows, out_channels]. On gemm's stream. Reads no more of the
// params than these need; output, epilogue and workspace may be left out.
cudaError_t MultiplyGroups(const GatherGemmScatterParams& params, const void* gathered, void* products, Gemm& gemm);

}  // namespace cuda
}  // namespace voxserve::kernels
