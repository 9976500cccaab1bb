#pragma once

// A linear layer on the rows of a tensor: out = epilogue(in W). A 1x1 convolution is the same operation.
//
// On CUDA it is one cuBLASLt product that includes the epilogue: the residual is the C of D = act(A B + C + bias). If
// cuBLASLt has no algorithm for a layout, or the residual's type is not the output's, the product and the epilogue run
// one after the other (two or three launches).

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct LinearParams {
  ConstRows in;                   // float32 only on the CPU
  const void* weights = nullptr;  // [in.channels, out.channels] in in's type
  Rows out;                       // same rows, in's type or float32; must not overlap `in`, may be the residual itself
  Epilogue epilogue;              // its bias has out's type, as cuBLASLt requires
};
static_assert(std::is_trivially_copyable_v<LinearParams>);

namespace cpu {

void Linear(const LinearParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

class Gemm;

// Runs on `stream`; cudaErrorInvalidValue if `gemm` is bound to another stream.
cudaError_t Linear(const LinearParams& params, Gemm& gemm, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
