#pragma once

// This header applies an Epilogue (epilogue.h) in a CUDA kernel: it adds bias and residual to a thread's float32 sums,
// applies the activation, and stores the results. Only .cu files include it.

#include <cstdint>

#include "kernels/core/epilogue.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"

namespace voxserve::kernels::cuda {

// GELU for results that are stored in 16 bits: x * (1 + erf(x / sqrt(2))) / 2. With t = |x| / sqrt(2),
//   erfc(t) = (a1 k + ... + a5 k^5) exp(-t^2), k = 1 / (1 + 0.3275911 t), to 1.5e-7
// (M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 1964, 7.1.26). The reciprocal and the
// exponential are the GPU's approximations, to 2 units in the last place of float32. NaN stays NaN.
__device__ inline float Gelu16(float value) {
  const float t = fabsf(value) * 0.70710678f;
  const float k = __fdividef(1.0f, fmaf(0.3275911f, t, 1.0f));
  float sum = fmaf(1.061405429f, k, -1.453152027f);
  sum = fmaf(sum, k, 1.421413741f);
  sum = fmaf(sum, k, -0.284496736f);
  sum = fmaf(sum, k, 0.254829592f);
  const float tail = 0.5f * sum * k * __expf(-t * t);  // the share of the other side of 0
  return value * (value < 0.0f ? tail : 1.0f - tail);
}

// Applies an activation to a value that is stored as Out. Not inlined, because exponentials would cost every kernel
// registers and instructions, and most networks only use ReLU.
template <typename Out>
__device__ __noinline__ float ActivateOutOfLine(const Activation activation, float value) {
  if constexpr (sizeof(Out) == 2) {
    if (activation.function == ActivationFunction::kGelu) return Gelu16(value);
  }
  return Activate(activation, value);
}

// An Epilogue with typed pointers. Residual and output may be the same memory: a thread reads a residual before it
// overwrites it, and no other thread reads or writes that value.
template <typename Residual, typename Bias>
struct TypedEpilogue {
  const Bias* bias;          // null: none
  const Residual* residual;  // null: none
  int64_t residual_pitch;
  Activation activation;

  explicit TypedEpilogue(const Epilogue& epilogue)
      : bias(static_cast<const Bias*>(epilogue.bias)),
        residual(static_cast<const Residual*>(epilogue.residual.data)),
        residual_pitch(epilogue.residual.pitch),
        activation(epilogue.activation) {}

  // Applies the epilogue to the sums of kCount channels, beginning with `channel`, and stores the results. `out` is the
  // address of the first result.
  template <int kCount, typename Out>
  __device__ void Store(float (&sums)[kCount], int64_t row, int32_t channel, Out* out) const {
    Pack<Bias, kCount> of_bias;
    Pack<Residual, kCount> of_residual;
    if (bias != nullptr) of_bias = LoadBias<kCount>(channel);
    if (residual != nullptr) of_residual = LoadResidual<kCount>(row, channel);
    Finish(sums, of_bias, of_residual, out);
  }

  // LoadBias may be called only if there is a bias, LoadResidual only if there is a residual.
  template <int kCount>
  __device__ Pack<Bias, kCount> LoadBias(int32_t channel) const {
    return LoadConstantPack<kCount>(bias + channel);
  }
  template <int kCount>
  __device__ Pack<Residual, kCount> LoadResidual(int64_t row, int32_t channel) const {
    return LoadPack<kCount>(residual + row * residual_pitch + channel);
  }

  // Does the same as Store, with values that LoadBias and LoadResidual returned. If there is no bias or no residual,
  // the argument for it is ignored.
  template <int kCount, typename Out>
  __device__ void Finish(float (&sums)[kCount], const Pack<Bias, kCount>& of_bias,
                         const Pack<Residual, kCount>& of_residual, Out* out) const {
    if (bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += ToFloat(of_bias.values[i]);
    }
    if (residual != nullptr) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += ToFloat(of_residual.values[i]);
    }
    if (activation.function == ActivationFunction::kRelu) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] = Activate(ActivationFunction::kRelu, sums[i]);
    } else if (activation.function != ActivationFunction::kNone) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] = ActivateOutOfLine<Out>(activation, sums[i]);
    }
    Pack<Out, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.values[i] = FromFloat<Out>(sums[i]);
    *reinterpret_cast<Pack<Out, kCount>*>(out) = result;
  }
};

// Adds the addresses and pitches of bias and residual to the alignment that all accesses of a launch share
// (CommonAlignment).
inline void AddEpilogue(const Epilogue& epilogue, CommonAlignment& alignment) {
  alignment.Add(epilogue.bias).Add(epilogue.residual);
}

}  // namespace voxserve::kernels::cuda
