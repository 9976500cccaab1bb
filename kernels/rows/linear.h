#pragma once

// A linear layer on the rows of a tensor: out = epilogue(in W). Also a 1x1 convolution, which is the same thing.
//
// On CUDA it is one cuBLASLt product with the epilogue inside: the residual is the C of D = act(A B + C + bias). Where
// cuBLASLt has nothing for a layout, or a residual's type is not the output's, the product and the epilogue run one
// after the other (two or three launches).

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct LinearParams {
  ConstRows in;                   // the CPU has float32 alone
  const void* weights = nullptr;  // [in.channels, out.channels] of in's type
  Rows out;                       // as many rows, of in's type or float32; not over `in`, may be the residual itself
  Epilogue epilogue;              // its bias is of out's type, which is what cuBLASLt asks for
};
static_assert(std::is_trivially_copyable_v<LinearParams>);

namespace cpu {

void Linear(const LinearParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

class Gemm;

// On the stream that `gemm` is bound to; cudaErrorInvalidValue for another.
cudaError_t Linear(const LinearParams& params, Gemm& gemm, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
