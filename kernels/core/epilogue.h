#pragma once

// The epilogue of a convolution or linear layer: it adds a bias and a residual to the layer's sums and applies an
// activation. It is applied before the sums are stored, so it costs no pass of its own over memory.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/core/rows.h"

namespace voxserve::kernels {

enum class ActivationFunction : int32_t {
  kNone,
  kRelu,
  kLeakyRelu,
  kSigmoid,
  kGelu,
  kSilu,
  kTanh,
  kElu,
  kClamp,
  kHardSigmoid,
  kHardSwish,
  kSoftplus,
  kMish,
  kGeluTanh,
  kExp,
  kLog,
  kSquare,
  kSqrt,
  kAbs,
  kPower
};

// The functions by their names in Activation.Function of model.proto, without "FUNCTION_". The loader reads by this
// table, and tests iterate over it.
struct ActivationName {
  ActivationFunction function;
  const char* name;
};
inline constexpr ActivationName kActivationNames[] = {
    {ActivationFunction::kRelu, "RELU"},
    {ActivationFunction::kLeakyRelu, "LEAKY_RELU"},
    {ActivationFunction::kSigmoid, "SIGMOID"},
    {ActivationFunction::kGelu, "GELU"},
    {ActivationFunction::kSilu, "SILU"},
    {ActivationFunction::kTanh, "TANH"},
    {ActivationFunction::kElu, "ELU"},
    {ActivationFunction::kClamp, "CLAMP"},
    {ActivationFunction::kHardSigmoid, "HARD_SIGMOID"},
    {ActivationFunction::kHardSwish, "HARD_SWISH"},
    {ActivationFunction::kSoftplus, "SOFTPLUS"},
    {ActivationFunction::kMish, "MISH"},
    {ActivationFunction::kGeluTanh, "GELU_TANH"},
    {ActivationFunction::kExp, "EXP"},
    {ActivationFunction::kLog, "LOG"},
    {ActivationFunction::kSquare, "SQUARE"},
    {ActivationFunction::kSqrt, "SQRT"},
    {ActivationFunction::kAbs, "ABS"},
    {ActivationFunction::kPower, "POWER"},
};

struct Activation {
  ActivationFunction function = ActivationFunction::kNone;
  // kLeakyRelu: the slope below 0. kElu: alpha. kSoftplus: beta. kPower: the exponent. kClamp: the least value.
  // The other functions ignore it.
  float parameter = 0;
  float largest = 0;  // kClamp: the largest value

  constexpr Activation() = default;
  constexpr Activation(ActivationFunction f, float p = 0, float most = 0)  // NOLINT: most functions have no parameter
      : function(f), parameter(p), largest(most) {}

  constexpr bool operator==(const Activation&) const = default;
};

// Returns the value limited to [least, largest]; NaN stays NaN.
constexpr float Clamp(float value, float least, float largest) {
  return value < least ? least : value > largest ? largest : value;
}

// Returns log(1 + exp(value)) without overflow.
constexpr float Softplus(float value) {
  return (value > 0.0f ? value : 0.0f) + std::log1p(std::exp(-std::fabs(value)));
}

// Applies an activation, on the CPU and in our CUDA kernels. The implicit GEMM also has a ReLU of its own, in
// store_sums.cuh. The values are those of the formulas in model.proto, and PyTorch's; some of the expressions differ
// from them, because they lose no digits and do not overflow. NaN stays NaN.
constexpr float Activate(const Activation& activation, float value) {
  switch (activation.function) {
    case ActivationFunction::kNone:
      break;
    case ActivationFunction::kRelu:
      return value < 0.0f ? 0.0f : value;
    case ActivationFunction::kLeakyRelu:
      return value < 0.0f ? activation.parameter * value : value;
    case ActivationFunction::kSigmoid:
      return 1.0f / (1.0f + std::exp(-value));
    case ActivationFunction::kGelu:  // 1 + erf(x) = erfc(-x), which keeps the digits that the sum would lose
      return 0.5f * value * std::erfc(-0.70710678f * value);
    case ActivationFunction::kSilu:
      return value / (1.0f + std::exp(-value));
    case ActivationFunction::kTanh:
      return std::tanh(value);
    case ActivationFunction::kElu:
      return value < 0.0f ? activation.parameter * std::expm1(value) : value;
    case ActivationFunction::kClamp:
      return Clamp(value, activation.parameter, activation.largest);
    case ActivationFunction::kHardSigmoid:
      return Clamp(value + 3.0f, 0.0f, 6.0f) / 6.0f;
    case ActivationFunction::kHardSwish:
      return value * (Clamp(value + 3.0f, 0.0f, 6.0f) / 6.0f);
    case ActivationFunction::kSoftplus:
      return Softplus(activation.parameter * value) / activation.parameter;
    case ActivationFunction::kMish:
      return value * std::tanh(Softplus(value));
    case ActivationFunction::kGeluTanh:  // 1 + tanh(u) = 2 / (1 + exp(-2 u)), which keeps the digits of small results
      return value / (1.0f + std::exp(-1.5957691f * (value + 0.044715f * value * value * value)));
    case ActivationFunction::kExp:
      return std::exp(value);
    case ActivationFunction::kLog:
      return std::log(value);
    case ActivationFunction::kSquare:
      return value * value;
    case ActivationFunction::kSqrt:
      return std::sqrt(value);
    case ActivationFunction::kAbs:
      return std::fabs(value);
    case ActivationFunction::kPower:
      return std::pow(value, activation.parameter);
  }
  return value;
}

// out = activation(sum + bias + residual). A folded batch norm is part of the weights and the bias.
struct Epilogue {
  const void* bias = nullptr;  // [out_channels] float32, unless a kernel's header says otherwise; null: none
  ConstRows residual;          // [num_out_rows, out_channels] in the dtype of the layer's input; null data: none
  Activation activation;

  // Returns true if the epilogue changes nothing.
  constexpr bool IsEmpty() const {
    return bias == nullptr && residual.data == nullptr && activation.function == ActivationFunction::kNone;
  }
};
static_assert(std::is_trivially_copyable_v<Epilogue>);

namespace cpu {

// The two halves of an epilogue, for rows [begin, end) of `out`. A kernel that adds its products to `out` itself calls
// StartRows before its first product and FinishRows after its last. StartRows writes bias + residual (or 0); FinishRows
// applies the activation. All values are float32. `out` may be the residual itself.
void StartRows(const Epilogue& epilogue, const Rows& out, int64_t begin, int64_t end);
void FinishRows(const Epilogue& epilogue, const Rows& out, int64_t begin, int64_t end);

void ActivateRow(const Activation& activation, float* row, int32_t channels);

// Writes a row out = epilogue(value_of(channel)). value_of(c) may read out[c]; then the residual must not be `out`.
template <typename ValueOf>
void WriteRow(const Epilogue& epilogue, const Rows& out_rows, int64_t row, const ValueOf& value_of) {
  const auto* const bias = static_cast<const float*>(epilogue.bias);
  const float* const residual = epilogue.residual.data == nullptr ? nullptr : epilogue.residual.floats(row);
  float* const out = out_rows.floats(row);
  for (int32_t c = 0; c < out_rows.channels; ++c) {
    float value = value_of(c);
    if (bias != nullptr) value += bias[c];
    if (residual != nullptr) value += residual[c];
    out[c] = value;
  }
  ActivateRow(epilogue.activation, out, out_rows.channels);
}

}  // namespace cpu

}  // namespace voxserve::kernels
