#include "kernels/core/gemm_cuda.h"
#include "kernels/core/launch.cuh"
#include "kernels/rows/linear.h"
#include "kernels/rows/scale_shift.h"

namespace voxserve::kernels::cuda {
namespace {

// out = activation(out (+ bias)).
cudaError_t FinishInPlace(const LinearParams& params, const void* bias, cudaStream_t stream) {
  return ScaleShift({.num_rows = params.num_rows,
                     .channels = params.out_channels,
                     .dtype = params.out_dtype,
                     .out_dtype = params.out_dtype,
                     .bias_dtype = params.out_dtype,
                     .in = params.out,
                     .in_pitch = params.out_pitch,
                     .out = params.out,
                     .out_pitch = params.out_pitch,
                     .epilogue = {.bias = bias, .activation = params.epilogue.activation}},
                    stream);
}

// The same by steps: out = residual (+ bias); out += in W; out = activation(out (+ bias)). A residual goes first, so
// that it may be `out` itself.
cudaError_t LinearBySteps(const LinearParams& params, Gemm& gemm, cudaStream_t stream) {
  const bool has_residual = params.epilogue.residual.data != nullptr;
  const bool is_out_residual = params.epilogue.residual.data == params.out;
  const bool bias_comes_first = has_residual && params.epilogue.bias != nullptr;
  if (bias_comes_first || (has_residual && !is_out_residual)) {
    VOXSERVE_RETURN_IF_CUDA(ScaleShift({.num_rows = params.num_rows,
                                        .channels = params.out_channels,
                                        .dtype = params.dtype,
                                        .out_dtype = params.out_dtype,
                                        .bias_dtype = params.out_dtype,
                                        .in = params.epilogue.residual.data,
                                        .in_pitch = params.epilogue.residual.pitch,
                                        .out = params.out,
                                        .out_pitch = params.out_pitch,
                                        .epilogue = {.bias = params.epilogue.bias}},
                                       stream));
  }
  VOXSERVE_RETURN_IF_CUDA(gemm.Multiply({.dtype = params.dtype,
                                         .out_dtype = params.out_dtype,
                                         .m = params.num_rows,
                                         .n = params.out_channels,
                                         .k = params.in_channels,
                                         .a = params.in,
                                         .a_pitch = params.in_pitch,
                                         .b = params.weights,
                                         .b_pitch = params.out_channels,
                                         .c = params.out,
                                         .c_pitch = params.out_pitch,
                                         .accumulate = has_residual}));
  const void* const bias = bias_comes_first ? nullptr : params.epilogue.bias;
  if (bias == nullptr && params.epilogue.activation.function == ActivationFunction::kNone) return cudaSuccess;
  return FinishInPlace(params, bias, stream);
}

}  // namespace

cudaError_t Linear(const LinearParams& params, Gemm& gemm, cudaStream_t stream) {
  if (params.num_rows == 0 || params.out_channels == 0) return cudaSuccess;
  if (stream != gemm.stream()) return cudaErrorInvalidValue;
  const NvtxRange range("Linear");
  const Epilogue& epilogue = params.epilogue;
  const ActivationFunction function = epilogue.activation.function;
  if (epilogue.residual.data == nullptr || params.dtype == params.out_dtype) {
    const cudaError_t error = gemm.MultiplyFused({.dtype = params.dtype,
                                                  .out_dtype = params.out_dtype,
                                                  .m = params.num_rows,
                                                  .n = params.out_channels,
                                                  .k = params.in_channels,
                                                  .a = params.in,
                                                  .a_pitch = params.in_pitch,
                                                  .b = params.weights,
                                                  .b_pitch = params.out_channels,
                                                  .bias = epilogue.bias,
                                                  .residual = epilogue.residual.data,
                                                  .residual_pitch = epilogue.residual.pitch,
                                                  .relu = function == ActivationFunction::kRelu,
                                                  .d = params.out,
                                                  .d_pitch = params.out_pitch});
    // The library knows ReLU alone.
    const bool is_finished = function == ActivationFunction::kNone || function == ActivationFunction::kRelu;
    if (error == cudaSuccess && !is_finished) return FinishInPlace(params, /*bias=*/nullptr, stream);
    if (error != cudaErrorNotSupported) return error;
  }
  return LinearBySteps(params, gemm, stream);
}

}  // namespace voxserve::kernels::cuda
