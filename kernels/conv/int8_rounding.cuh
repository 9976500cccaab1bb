#pragma once

// These functions round values to whole numbers of 8 bits in a CUDA kernel, with the bytes that the CPU gives
// (int8_epilogue.h). Only .cu files include this header.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels::cuda {

// Rounds a value to uint8 or int8. The conversion makes NaN 0.
__device__ inline uint8_t RoundToByte(float value, bool is_signed) {
  const int32_t whole = __float2int_rn(value);
  return static_cast<uint8_t>(is_signed ? max(-127, min(127, whole)) : max(0, min(255, whole)));
}

// Returns the larger of two values, and NaN if `value` is NaN.
__device__ inline float LargerOrNan(float value, float least) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(larger) : "f"(value), "f"(least));
  return larger;
#else
  return value < least ? least : value;
#endif
}

// Rounds four values to uint8 or int8 and returns them as a word, the first in the lowest byte. least: -127 or 0, the
// least number of int8; not read for uint8. From sm_86 on the compiler makes one instruction (F2IP) of the conversion
// of two values and their packing. It is many times as fast as conversions to int32 (F2I), which must not be needed
// elsewhere. sm_80 has no such instruction, and converts each value by F2I.
template <typename Out>
__device__ uint32_t PackRounded(const float* values, [[maybe_unused]] float least = -127.0f) {
  int32_t whole[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    whole[i] = __float2int_rn(std::is_same_v<Out, int8_t> ? LargerOrNan(values[i], least) : values[i]);
  }
  uint32_t upper, packed;
  if constexpr (std::is_same_v<Out, int8_t>) {
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;\n" : "=r"(upper) : "r"(whole[3]), "r"(whole[2]), "r"(0));
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;\n" : "=r"(packed) : "r"(whole[1]), "r"(whole[0]), "r"(upper));
  } else {
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;\n" : "=r"(upper) : "r"(whole[3]), "r"(whole[2]), "r"(0));
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;\n" : "=r"(packed) : "r"(whole[1]), "r"(whole[0]), "r"(upper));
  }
  return packed;
}

}  // namespace voxserve::kernels::cuda
