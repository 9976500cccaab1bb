#pragma once

// The epilogue of a convolution or linear layer: + bias, + residual, activation. It is applied to the sums before they
// are stored, so it costs no pass of its own.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/core/rows.h"

namespace voxserve::kernels {

enum class ActivationFunction : int32_t { kNone, kRelu, kLeakyRelu, kSigmoid, kGelu, kSilu, kTanh };

struct Activation {
  ActivationFunction function = ActivationFunction::kNone;
  float negative_slope = 0;  // used by kLeakyRelu

  constexpr Activation() = default;
  constexpr Activation(ActivationFunction f, float slope = 0)  // NOLINT: most functions have no parameter
      : function(f), negative_slope(slope) {}

  constexpr bool operator==(const Activation&) const = default;
};

// Applies an activation. This is the only definition of each activation, for the CPU and for our CUDA kernels. They
// equal PyTorch's; GELU uses the error function itself. NaN stays NaN.
constexpr float Activate(const Activation& activation, float value) {
  switch (activation.function) {
    case ActivationFunction::kNone:
      break;
    case ActivationFunction::kRelu:
      return value < 0.0f ? 0.0f : value;
    case ActivationFunction::kLeakyRelu:
      return value < 0.0f ? activation.negative_slope * value : value;
    case ActivationFunction::kSigmoid:
      return 1.0f / (1.0f + std::exp(-value));
    case ActivationFunction::kGelu:  // 1 + erf(x) = erfc(-x), which keeps the digits that the sum would lose
      return 0.5f * value * std::erfc(-0.70710678f * value);
    case ActivationFunction::kSilu:
      return value / (1.0f + std::exp(-value));
    case ActivationFunction::kTanh:
      return std::tanh(value);
  }
  return value;
}

// out = activation(sum + bias + residual). A folded batch norm is part of the weights and the bias.
struct Epilogue {
  const void* bias = nullptr;  // [out_channels] float32, unless the layer asks for another type; null: none
  ConstRows residual;          // [num_out_rows, out_channels] in the dtype of the layer's input; null data: none
  Activation activation;
};
static_assert(std::is_trivially_copyable_v<Epilogue>);

namespace cpu {

// The two halves of an epilogue for rows [begin, end) of `out`, in which a sum is built in place. StartRows writes bias
// + residual (or 0); FinishRows applies the activation. All values are float32. `out` may be the residual itself.
void StartRows(const Epilogue& epilogue, const Rows& out, int64_t begin, int64_t end);
void FinishRows(const Epilogue& epilogue, const Rows& out, int64_t begin, int64_t end);

void ActivateRow(const Activation& activation, float* row, int32_t channels);

}  // namespace cpu

}  // namespace voxserve::kernels
