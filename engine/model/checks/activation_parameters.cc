#include "engine/model/checks/activation_parameters.h"

#include <cmath>

namespace voxserve {
namespace {

using kernels::ActivationFunction;

constexpr float kDefaultNegativeSlope = 0.01f;  // PyTorch's

std::optional<ActivationFunction> FunctionOf(model::v1::Activation::Function function) {
  using model::v1::Activation;
  switch (function) {
    case Activation::FUNCTION_RELU:
      return ActivationFunction::kRelu;
    case Activation::FUNCTION_LEAKY_RELU:
      return ActivationFunction::kLeakyRelu;
    case Activation::FUNCTION_SIGMOID:
      return ActivationFunction::kSigmoid;
    case Activation::FUNCTION_GELU:
      return ActivationFunction::kGelu;
    case Activation::FUNCTION_SILU:
      return ActivationFunction::kSilu;
    case Activation::FUNCTION_TANH:
      return ActivationFunction::kTanh;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<ActivationOp> ReadActivation(const model::v1::Activation& proto, const ProblemsAt& at) {
  const std::optional<ActivationFunction> function = FunctionOf(proto.function());
  if (!function) {
    at.Add(
        "function must be FUNCTION_RELU, FUNCTION_LEAKY_RELU, FUNCTION_SIGMOID, FUNCTION_GELU, FUNCTION_SILU or "
        "FUNCTION_TANH");
    return std::nullopt;
  }
  if (function != ActivationFunction::kLeakyRelu) {
    if (!proto.has_negative_slope()) return ActivationOp{.activation = *function};
    at.Add("negative_slope belongs to FUNCTION_LEAKY_RELU alone");
    return std::nullopt;
  }
  const float slope = proto.has_negative_slope() ? proto.negative_slope() : kDefaultNegativeSlope;
  if (!std::isfinite(slope)) {
    at.Add("negative_slope is ", slope, "; it must be finite");
    return std::nullopt;
  }
  return ActivationOp{.activation = {*function, slope}};
}

}  // namespace voxserve
