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

  // Of kCount channels from `channel` on; `out` is where the first of them goes.
  template <int kCount, typename Out>
  __device__ void Store(float (&sums)[kCount], int64_t row, int32_t channel, Out* out) const {
    if (bias != nullptr) {
      const Pack<Bias, kCount> added = LoadPack<kCount>(bias + channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += ToFloat(added.values[i]);
    }
    if (residual != nullptr) {
      const Pack<Residual, kCount> added = LoadPack<kCount>(residual + row * residual_pitch + channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += ToFloat(added.values[i]);
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
