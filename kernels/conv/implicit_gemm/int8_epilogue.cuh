#pragma once

// This header applies an Int8Epilogue (int8_epilogue.h) in a CUDA kernel, with the bytes that the CPU gives. Intrinsics
// keep the compiler from fusing multiplications and additions. Only .cu files include this header.

#include <cstdint>

#include "kernels/conv/int8_epilogue.h"
#include "kernels/conv/int8_rounding.cuh"
#include "kernels/core/epilogue.cuh"

namespace voxserve::kernels::cuda {

// An Int8Epilogue for one type of residual. Residual and output may be the same memory, as in TypedEpilogue.
struct TypedInt8Epilogue {
  const float* multiplier;
  const float* bias;            // null: none
  const float* residual_scale;  // null: 1
  const float* inverse_scale;   // null: 1
  const void* residual;         // null: none
  int64_t residual_pitch;
  DType residual_dtype;  // uint8, int8, float16 or float32
  Activation activation;

  explicit TypedInt8Epilogue(const Int8Epilogue& epilogue)
      : multiplier(epilogue.multiplier),
        bias(epilogue.bias),
        residual_scale(epilogue.residual_scale),
        inverse_scale(epilogue.inverse_scale),
        residual(epilogue.residual.data),
        residual_pitch(epilogue.residual.pitch),
        residual_dtype(epilogue.residual.dtype),
        activation(epilogue.activation) {}

  // Returns a residual, which is not yet multiplied by its scale.
  __device__ float ResidualAt(int64_t row, int32_t channel) const {
    const int64_t place = row * residual_pitch + channel;
    switch (residual_dtype) {
      case DType::kUint8:
        return static_cast<float>(static_cast<const uint8_t*>(residual)[place]);
      case DType::kInt8:
        return static_cast<float>(static_cast<const int8_t*>(residual)[place]);
      case DType::kFloat16:
        return __half2float(static_cast<const __half*>(residual)[place]);
      default:
        return static_cast<const float*>(residual)[place];
    }
  }

  // Returns the value of one sum, which is not yet rounded. Any activation is served.
  __device__ float ValueOf(int32_t sum, int64_t row, int32_t channel) const {
    float value = __fmul_rn(__int2float_rn(sum), __ldg(multiplier + channel));
    if (bias != nullptr) value = __fadd_rn(value, __ldg(bias + channel));
    if (residual != nullptr) {
      float added = ResidualAt(row, channel);
      if (residual_scale != nullptr) added = __fmul_rn(added, __ldg(residual_scale + channel));
      value = __fadd_rn(value, added);
    }
    if (activation.function != ActivationFunction::kNone) value = ActivateOutOfLine<float>(activation, value);
    return inverse_scale == nullptr ? value : __fmul_rn(value, __ldg(inverse_scale + channel));
  }
};

}  // namespace voxserve::kernels::cuda
