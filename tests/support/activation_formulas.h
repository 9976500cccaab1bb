#pragma once

// The oracle for activations. It computes them by the formulas that model.proto publishes, in extended precision, and
// shares no code with the kernels. A formula is the comment behind a value of Activation.Function, up to a semicolon:
//
//   FUNCTION_MISH = 12;  // x * tanh(log(1 + exp(x)))
//
// It consists of numbers, x, pi, the parameters of the message Activation, + - * /, parentheses and functions.

#include <vector>

#include "kernels/core/epilogue.h"

namespace voxserve::support {

// Returns the activation of x by its published formula.
double DefinedActivation(const kernels::Activation& activation, double x);

// Returns every function once or more often: those with parameters with one or two values of them.
std::vector<kernels::Activation> EveryActivation();

}  // namespace voxserve::support
