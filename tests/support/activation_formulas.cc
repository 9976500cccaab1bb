#include "tests/support/activation_formulas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/paths.h"

namespace voxserve::support {
namespace {

using kernels::Activation;
using kernels::ActivationFunction;

// Computes one formula by recursive descent. A formula that cannot be read fails the test, and its value is NaN.
class FormulaReader {
 public:
  using Number = long double;

  // The text must outlive the reader.
  FormulaReader(const std::string& text, const Activation& activation, double x)
      : text_(text), activation_(activation), x_(x) {}

  Number Compute() {
    const Number value = Sum();
    return at_ == text_.size() ? value : Fail();
  }

 private:
  Number Sum() {
    Number sum = Product();
    for (;;) {
      if (Take('+')) {
        sum += Product();
      } else if (Take('-')) {
        sum -= Product();
      } else {
        return sum;
      }
    }
  }

  Number Product() {
    Number product = Factor();
    for (;;) {
      if (Take('*')) {
        product *= Factor();
      } else if (Take('/')) {
        product /= Factor();
      } else {
        return product;
      }
    }
  }

  Number Factor() {
    if (Take('-')) return -Factor();
    if (Take('(')) {
      const Number inner = Sum();
      return Take(')') ? inner : Fail();
    }
    if (const std::string digits = Word([](char c) { return std::isdigit(c) != 0 || c == '.'; }); !digits.empty()) {
      return std::strtold(digits.c_str(), nullptr);
    }
    const std::string name = Word([](char c) { return std::isalnum(c) != 0 || c == '_'; });
    return Take('(') ? Call(name) : Variable(name);
  }

  Number Variable(const std::string& name) {
    if (name == "x") return x_;
    if (name == "pi") return std::acos(Number{-1});
    if (name == "maximum") return activation_.largest;
    for (const char* parameter : {"negative_slope", "alpha", "beta", "minimum", "exponent"}) {
      if (name == parameter) return activation_.parameter;
    }
    return Fail();
  }

  Number Call(const std::string& name) {
    const Number a = Sum();
    if (Take(',')) {
      const Number b = Sum();
      if (!Take(')')) return Fail();
      if (name == "min") return std::min(a, b);
      if (name == "max") return std::max(a, b);
      if (name == "pow") return std::pow(a, b);
      return Fail();
    }
    if (!Take(')')) return Fail();
    if (name == "abs") return std::fabs(a);
    if (name == "exp") return std::exp(a);
    if (name == "log") return std::log(a);
    if (name == "sqrt") return std::sqrt(a);
    if (name == "tanh") return std::tanh(a);
    if (name == "erf") return std::erf(a);
    return Fail();
  }

  Number Fail() {
    ADD_FAILURE() << "no formula: \"" << text_ << "\", at character " << at_;
    at_ = text_.size();
    return std::numeric_limits<Number>::quiet_NaN();
  }

  void SkipSpaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool Take(char wanted) {
    SkipSpaces();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    SkipSpaces();
    return true;
  }

  template <typename IsPart>
  std::string Word(IsPart is_part) {
    const size_t begin = at_;
    while (at_ < text_.size() && is_part(text_[at_])) ++at_;
    std::string word = text_.substr(begin, at_ - begin);
    SkipSpaces();
    return word;
  }

  const std::string& text_;
  const Activation& activation_;
  const double x_;
  size_t at_ = 0;
};

// Returns the formula of a function by its name in kActivationNames, or "" if model.proto has none.
std::string FormulaOf(const std::string& model_proto, const std::string& name) {
  const size_t value = model_proto.find(" FUNCTION_" + name + " = ");
  const size_t begin = model_proto.find("// ", value), end = model_proto.find('\n', value);
  if (value == std::string::npos || begin > end) return "";
  const std::string comment = model_proto.substr(begin + 3, end - begin - 3);
  return comment.substr(0, comment.find(';'));
}

std::map<ActivationFunction, std::string> ReadFormulas() {
  std::ostringstream model_proto;
  model_proto << std::ifstream(SourceDir() + "/proto/voxserve/model/v1/model.proto").rdbuf();
  std::map<ActivationFunction, std::string> formulas;
  for (const auto& [function, name] : kernels::kActivationNames)
    formulas[function] = FormulaOf(model_proto.str(), name);
  return formulas;
}

}  // namespace

double DefinedActivation(const Activation& activation, double x) {
  static const std::map<ActivationFunction, std::string> kFormulas = ReadFormulas();
  if (activation.function == ActivationFunction::kNone) return x;
  return static_cast<double>(FormulaReader(kFormulas.at(activation.function), activation, x).Compute());
}

std::vector<Activation> EveryActivation() {
  std::vector<Activation> activations = {ActivationFunction::kNone};
  for (const auto& [function, name] : kernels::kActivationNames) {
    switch (function) {
      case ActivationFunction::kLeakyRelu:
        activations.insert(activations.end(), {{function, 0.125f}, {function, -2}});
        break;
      case ActivationFunction::kElu:
        activations.emplace_back(function, 1.5f);
        break;
      case ActivationFunction::kClamp:
        activations.emplace_back(function, -1.25f, 6.0f);
        break;
      case ActivationFunction::kSoftplus:
        activations.emplace_back(function, 0.5f);
        break;
      case ActivationFunction::kPower:
        activations.insert(activations.end(), {{function, 1.5f}, {function, 3}});
        break;
      default:
        activations.emplace_back(function);
    }
  }
  return activations;
}

}  // namespace voxserve::support
