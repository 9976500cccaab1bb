#pragma once

// The epilogue of our own CUDA kernels: what happens to a thread's float32 sums on their way to the output.

#include <cstdint>

#include "kernels/core/epilogue.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"

namespace voxserve::kernels::cuda {

// An Epilogue with its types. Residual and output may be the same memory: a thread reads what it alone then writes.
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

  // Stores kCount channels from `channel` on; `out` is where the first of them goes.
  template <int kCount, typename Out>
  __device__ void Store(float (&sums)[kCount], int64_t row, int32_t channel, Out* out) const {
    Pack<Bias, kCount> of_bias;
    Pack<Residual, kCount> of_residual;
    if (bias != nullptr) of_bias = LoadBias<kCount>(channel);
    if (residual != nullptr) of_residual = LoadResidual<kCount>(row, channel);
    Finish(sums, of_bias, of_residual, out);
  }

  // Only where there is one.
  template <int kCount>
  __device__ Pack<Bias, kCount> LoadBias(int32_t channel) const {
    return LoadConstantPack<kCount>(bias + channel);
  }
  template <int kCount>
  __device__ Pack<Residual, kCount> LoadResidual(int64_t row, int32_t channel) const {
    return LoadPack<kCount>(residual + row * residual_pitch + channel);
  }

  // As Store, with what LoadBias and LoadResidual gave; anything where there is none.
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
      for (int i = 0; i < kCount; ++i) sums[i] = ActivateOutOfLine(activation, sums[i]);
    }
    Pack<Out, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.values[i] = FromFloat<Out>(sums[i]);
    *reinterpret_cast<Pack<Out, kCount>*>(out) = result;
  }

 private:
  // Inlined, exponentials would cost every kernel registers and instructions; most networks have ReLU alone.
  __device__ __noinline__ static float ActivateOutOfLine(const Activation activation, float value) {
    return Activate(activation, value);
  }
};

// Bytes that an epilogue's accesses start at.
inline void AddEpilogue(const Epilogue& epilogue, CommonAlignment& alignment) {
  alignment.Add(epilogue.bias).Add(epilogue.residual);
}

}  // namespace voxserve::kernels::cuda
