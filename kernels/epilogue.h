#pragma once

// What a convolution or a linear layer does with its sums before it stores them: + bias, + residual, activation. Costs
// no pass of its own.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

enum class ActivationFunction : int32_t { kNone, kRelu };

// The one definition of every activation, on the CPU and in our CUDA kernels. NaN stays NaN.
constexpr float Activate(ActivationFunction function, float value) {
  switch (function) {
    case ActivationFunction::kNone:
      break;
    case ActivationFunction::kRelu:
      return value < 0.0f ? 0.0f : value;
  }
  return value;
}

// out = activation(sum + bias + residual), with folded batch norm in the weights and the bias. The residual has the
// dtype of the layer's input.
struct Epilogue {
  const void* bias = nullptr;      // [out_channels] float32, where the layer does not ask for another; null: none
  const void* residual = nullptr;  // [num_out_rows, out_channels], rows residual_pitch apart; null: none
  int64_t residual_pitch = 0;      // values
  ActivationFunction activation = ActivationFunction::kNone;
};
static_assert(std::is_trivially_copyable_v<Epilogue>);

namespace cpu {

// The two halves of an epilogue around a sum that is built in place, for rows [begin, end) of out [.., channels]:
// StartRows sets them to bias + residual (or 0), FinishRows applies the activation. All is float32. out may be the
// residual itself.
void StartRows(const Epilogue& epilogue, float* out, int64_t out_pitch, int32_t channels, int64_t begin, int64_t end);
void FinishRows(const Epilogue& epilogue, float* out, int64_t out_pitch, int32_t channels, int64_t begin, int64_t end);

}  // namespace cpu

}  // namespace voxserve::kernels
