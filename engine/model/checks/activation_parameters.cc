#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "engine/model/checks/checks.h"

namespace voxserve {
namespace {

using kernels::ActivationFunction;
using Proto = model::v1::Activation;

constexpr float kDefaultNegativeSlope = 0.01f;  // PyTorch's

std::string NameOf(const kernels::ActivationName& function) { return absl::StrCat("FUNCTION_", function.name); }

std::optional<ActivationFunction> FunctionOf(Proto::Function function) {
  for (const kernels::ActivationName& named : kernels::kActivationNames) {
    if (NameOf(named) == Proto::Function_Name(function)) return named.function;
  }
  return std::nullopt;
}

std::string NamesOfFunctions() {
  return absl::StrJoin(kernels::kActivationNames, ", ",
                       [](std::string* out, const auto& named) { out->append(NameOf(named)); });
}

// A parameter in the file, and the only activation function that has this parameter.
struct Parameter {
  const char* name;
  bool is_there;
  float value;
  Proto::Function owner;
};

// Returns true if every parameter that is there belongs to the function and is finite; otherwise reports a problem.
bool AreRight(absl::Span<const Parameter> parameters, Proto::Function function, const ProblemsAt& at) {
  for (const Parameter& parameter : parameters) {
    if (!parameter.is_there) continue;
    if (parameter.owner != function) {
      at.Add(parameter.name, " belongs to ", Proto::Function_Name(parameter.owner), " alone");
      return false;
    }
    if (!std::isfinite(parameter.value)) {
      at.Add(parameter.name, " is ", parameter.value, "; it must be finite");
      return false;
    }
  }
  return true;
}

std::optional<ActivationOp> ReadClamp(const Proto& proto, const ProblemsAt& at) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!proto.has_minimum() && !proto.has_maximum()) {
    at.Add("FUNCTION_CLAMP needs minimum, maximum or both");
    return std::nullopt;
  }
  const float minimum = proto.has_minimum() ? proto.minimum() : -kInfinity;
  const float maximum = proto.has_maximum() ? proto.maximum() : kInfinity;
  if (minimum > maximum) {
    at.Add("minimum is ", minimum, ", above the maximum, ", maximum);
    return std::nullopt;
  }
  return ActivationOp{.activation = {ActivationFunction::kClamp, minimum, maximum}};
}

}  // namespace

std::optional<ActivationOp> ReadActivation(const Proto& proto, const ProblemsAt& at) {
  const std::optional<ActivationFunction> function = FunctionOf(proto.function());
  if (!function) {
    at.Add("function must be one of ", NamesOfFunctions());
    return std::nullopt;
  }
  const Parameter parameters[] = {
      {"negative_slope", proto.has_negative_slope(), proto.negative_slope(), Proto::FUNCTION_LEAKY_RELU},
      {"alpha", proto.has_alpha(), proto.alpha(), Proto::FUNCTION_ELU},
      {"beta", proto.has_beta(), proto.beta(), Proto::FUNCTION_SOFTPLUS},
      {"minimum", proto.has_minimum(), proto.minimum(), Proto::FUNCTION_CLAMP},
      {"maximum", proto.has_maximum(), proto.maximum(), Proto::FUNCTION_CLAMP},
      {"exponent", proto.has_exponent(), proto.exponent(), Proto::FUNCTION_POWER},
  };
  if (!AreRight(parameters, proto.function(), at)) return std::nullopt;
  switch (*function) {
    case ActivationFunction::kLeakyRelu:
      return ActivationOp{
          .activation = {*function, proto.has_negative_slope() ? proto.negative_slope() : kDefaultNegativeSlope}};
    case ActivationFunction::kElu:
      return ActivationOp{.activation = {*function, proto.has_alpha() ? proto.alpha() : 1.0f}};
    case ActivationFunction::kSoftplus:
      if (proto.has_beta() && proto.beta() <= 0) {
        at.Add("beta is ", proto.beta(), "; it must be above 0");
        return std::nullopt;
      }
      return ActivationOp{.activation = {*function, proto.has_beta() ? proto.beta() : 1.0f}};
    case ActivationFunction::kClamp:
      return ReadClamp(proto, at);
    case ActivationFunction::kPower:
      if (!proto.has_exponent()) {
        at.Add("FUNCTION_POWER needs an exponent");
        return std::nullopt;
      }
      return ActivationOp{.activation = {*function, proto.exponent()}};
    default:
      return ActivationOp{.activation = *function};
  }
}

}  // namespace voxserve
