#pragma once

// A kernel of the implicit GEMM for linear layers on Hopper, in 16 bits. Output row o reads input row o, so the inputs
// of a tile lie side by side and one thread copies them, where the general kernel looks up each row. A block keeps the
// weights of its columns in shared memory while it walks down the rows. Results have the bytes of the implicit GEMM's
// kernels of warp groups.

#include "kernels/conv/implicit_gemm/implicit_gemm.h"

namespace voxserve::kernels::cuda {

// Queues a linear layer. Returns cudaErrorNotSupported without launching for params that the kernel does not serve:
// other GPUs and types, the tiles form, those that ask for a block of ImplicitGemmBlocks, labels or a shortcut, weights
// that leave no room for inputs in shared memory, more than 1024 input channels, more tiles of columns than
// multiprocessors, and inputs whose rows are not aligned to 16 bytes. ImplicitGemm checks the other conditions.
cudaError_t LinearRows(const ImplicitGemmParams& params, cudaStream_t stream);

// The shapes of blocks, from narrow to wide. Tests and measurements choose one.
inline constexpr int kNumLinearRowsShapes = 2;
struct LinearRowsShapeSizes {
  int columns, groups;
};
LinearRowsShapeSizes SizesOfLinearRowsShape(int number);
cudaError_t LinearRowsOfShape(const ImplicitGemmParams& params, int number, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
