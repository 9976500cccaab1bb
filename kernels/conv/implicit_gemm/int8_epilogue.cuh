#pragma once

// This header applies an Int8Epilogue (int8_epilogue.h) in a CUDA kernel, with the bytes that the CPU gives. Intrinsics
// keep the compiler from fusing multiplications and additions. Only .cu files include this header.

#include <cstdint>

#include "kernels/conv/int8_epilogue.h"
#include "kernels/core/epilogue.cuh"

namespace voxserve::kernels::cuda {

// An Int8Epilogue with typed pointers. Its residual must be uint8 or int8. Residual and output may be the same memory,
// as in TypedEpilogue.
struct TypedInt8Epilogue {
  const float* multiplier;
  const float* bias;            // null: none
  const float* residual_scale;  // null: 1
  const float* inverse_scale;   // null: 1
  const uint8_t* residual;      // null: none
  int64_t residual_pitch;
  bool is_residual_signed;
  Activation activation;

  explicit TypedInt8Epilogue(const Int8Epilogue& epilogue)
      : multiplier(epilogue.multiplier),
        bias(epilogue.bias),
        residual_scale(epilogue.residual_scale),
        inverse_scale(epilogue.inverse_scale),
        residual(static_cast<const uint8_t*>(epilogue.residual.data)),
        residual_pitch(epilogue.residual.pitch),
        is_residual_signed(epilogue.residual.dtype == DType::kInt8),
        activation(epilogue.activation) {}

  // Returns the value of one sum, which is not yet rounded. Any activation is served.
  __device__ float ValueOf(int32_t sum, int64_t row, int32_t channel) const {
    float value = __fmul_rn(__int2float_rn(sum), __ldg(multiplier + channel));
    if (bias != nullptr) value = __fadd_rn(value, __ldg(bias + channel));
    if (residual != nullptr) {
      const uint8_t byte = residual[row * residual_pitch + channel];
      float added = is_residual_signed ? static_cast<float>(static_cast<int8_t>(byte)) : static_cast<float>(byte);
      if (residual_scale != nullptr) added = __fmul_rn(added, __ldg(residual_scale + channel));
      value = __fadd_rn(value, added);
    }
    if (activation.function != ActivationFunction::kNone) value = ActivateOutOfLine<float>(activation, value);
    return inverse_scale == nullptr ? value : __fmul_rn(value, __ldg(inverse_scale + channel));
  }
};

// Rounds a value to uint8 or int8. The conversion makes NaN 0.
__device__ inline uint8_t RoundToByte(float value, bool is_signed) {
  const int32_t whole = __float2int_rn(value);
  return static_cast<uint8_t>(is_signed ? max(-127, min(127, whole)) : max(0, min(255, whole)));
}

// Returns four bytes, the first of which is the lowest, after each has been limited to the range of uint8.
__device__ inline uint32_t PackUint8(const int32_t (&values)[4]) {
  uint32_t upper, packed;
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;\n" : "=r"(upper) : "r"(values[3]), "r"(values[2]), "r"(0));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;\n" : "=r"(packed) : "r"(values[1]), "r"(values[0]), "r"(upper));
  return packed;
}

// Does the same with the range of int8, and limits the values to at least `least`.
__device__ inline uint32_t PackInt8(const int32_t (&values)[4], int32_t least) {
  uint32_t upper, packed;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;\n"
      : "=r"(upper)
      : "r"(max(values[3], least)), "r"(max(values[2], least)), "r"(0));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;\n"
      : "=r"(packed)
      : "r"(max(values[1], least)), "r"(max(values[0], least)), "r"(upper));
  return packed;
}

}  // namespace voxserve::kernels::cuda
