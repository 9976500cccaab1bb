#pragma once

// A linear layer on the rows of a tensor: out = epilogue(in W). Also a 1x1 convolution, which is the same thing.
//
// On CUDA it is one cuBLASLt product with the epilogue inside: the residual is the C of D = act(A B + C + bias). Where
// cuBLASLt has nothing for a layout, or a residual's type is not the output's, the product and the epilogue run one
// after the other (two or three launches).

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct LinearParams {
  int64_t num_rows = 0;
  DType dtype = DType::kFloat32;      // of in, weights and residual; the CPU has float32 alone
  DType out_dtype = DType::kFloat32;  // of out: dtype, or float32
  const void* in = nullptr;           // [num_rows, in_channels], rows in_pitch apart
  int64_t in_pitch = 0;               // values, as all pitches
  int32_t in_channels = 0;
  const void* weights = nullptr;  // [in_channels, out_channels]
  void* out = nullptr;            // [num_rows, out_channels], rows out_pitch apart; must not overlap `in`, may be the
  int64_t out_pitch = 0;          //   residual itself
  int32_t out_channels = 0;
  Epilogue epilogue;  // its bias is out_dtype, which is what cuBLASLt asks for
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
