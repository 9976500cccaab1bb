#include "kernels/core/gemm_cuda.h"
#include "kernels/core/launch.cuh"
#include "kernels/rows/linear.h"
#include "kernels/rows/scale_shift.h"

namespace voxserve::kernels::cuda {
namespace {

ConstRows WeightsOf(const LinearParams& params) {
  return ConstRows::Packed(params.weights, params.in.dtype, params.in.channels, params.out.channels);
}

// Computes out = activation(out (+ bias)).
cudaError_t FinishInPlace(const LinearParams& params, const void* bias, cudaStream_t stream) {
  return ScaleShift({.in = params.out,
                     .out = params.out,
                     .bias_dtype = params.out.dtype,
                     .epilogue = {.bias = bias, .activation = params.epilogue.activation}},
                    stream);
}

// Computes Linear in steps: out = residual (+ bias); out += in W; out = activation(out (+ bias)). The residual comes
// first, so that it may be `out` itself.
cudaError_t LinearBySteps(const LinearParams& params, Gemm& gemm, cudaStream_t stream) {
  const bool has_residual = params.epilogue.residual.data != nullptr;
  const bool is_out_residual = params.epilogue.residual.data == params.out.data;
  const bool bias_comes_first = has_residual && params.epilogue.bias != nullptr;
  if (bias_comes_first || (has_residual && !is_out_residual)) {
    VOXSERVE_RETURN_IF_CUDA(ScaleShift({.in = params.epilogue.residual,
                                        .out = params.out,
                                        .bias_dtype = params.out.dtype,
                                        .epilogue = {.bias = params.epilogue.bias}},
                                       stream));
  }
  VOXSERVE_RETURN_IF_CUDA(
      gemm.Multiply({.a = params.in, .b = WeightsOf(params), .c = params.out, .accumulate = has_residual}));
  const void* const bias = bias_comes_first ? nullptr : params.epilogue.bias;
  if (bias == nullptr && params.epilogue.activation.function == ActivationFunction::kNone) return cudaSuccess;
  return FinishInPlace(params, bias, stream);
}

}  // namespace

cudaError_t Linear(const LinearParams& params, Gemm& gemm, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0) return cudaSuccess;
  if (stream != gemm.stream()) return cudaErrorInvalidValue;
  const NvtxRange range("Linear");
  const Epilogue& epilogue = params.epilogue;
  const ActivationFunction function = epilogue.activation.function;
  if (epilogue.residual.data == nullptr || params.in.dtype == params.out.dtype) {
    const cudaError_t error = gemm.MultiplyFused({.a = params.in,
                                                  .b = WeightsOf(params),
                                                  .bias = epilogue.bias,
                                                  .residual = epilogue.residual,
                                                  .relu = function == ActivationFunction::kRelu,
                                                  .d = params.out});
    // cuBLASLt knows ReLU as its only activation.
    const bool is_finished = function == ActivationFunction::kNone || function == ActivationFunction::kRelu;
    if (error == cudaSuccess && !is_finished) return FinishInPlace(params, /*bias=*/nullptr, stream);
    if (error != cudaErrorNotSupported) return error;
  }
  return LinearBySteps(params, gemm, stream);
}

}  // namespace voxserve::kernels::cuda
