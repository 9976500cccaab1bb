#pragma once

// Linear computes a linear layer on the rows of a tensor: out = epilogue(in W). A 1x1 convolution is the same
// operation.
//
// On CUDA, one cuBLASLt matrix product usually includes the epilogue: it computes D = act(A B + C + bias), where C is
// the residual and act is none or ReLU. Another activation runs as a second launch. If there is a residual of another
// type than the output, or cuBLASLt has no algorithm for the layout, the matrix product and the parts of the epilogue
// run one after the other (up to three launches).

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct LinearParams {
  ConstRows in;  // the CPU only supports float32
  // [in.channels, out.channels] in in's type. On a CPU packed by PackWeights of kernels/conv/fetch_on_demand.h, as one
  // offset, in this process.
  const void* weights = nullptr;
  Rows out;           // in's rows; in's type or float32; must not overlap `in`, may be the residual itself
  Epilogue epilogue;  // its bias has out's type, as cuBLASLt requires
};
static_assert(std::is_trivially_copyable_v<LinearParams>);

namespace cpu {

void Linear(const LinearParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

class Gemm;

// Returns cudaErrorInvalidValue if `gemm` is bound to another stream than `stream`.
cudaError_t Linear(const LinearParams& params, Gemm& gemm, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
