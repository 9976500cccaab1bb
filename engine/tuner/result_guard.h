#pragma once

// Checks whether a plan's result may replace the default plan's. Plans add in different orders, so their results agree
// up to rounding, not in bytes. Runs of one plan agree in bytes unless its dataflow says otherwise.

#include <string>

#include "engine/compiler/program.h"
#include "engine/tensor/infer_result.h"

namespace voxserve {

// Returns why the result deviates; "" if it does not. It deviates if
// - with scores: one is off by more than 2% of the largest, or is not finite while the expected one is;
// - without scores: more than 0.5% of the points have different labels;
// - with boxes: more than 10% of both results' boxes have no match in the other, which is a box of the same class
//   within 0.2 m and 0.05 of the score. Two boxes may always differ.
// - with tensors: values differ by the rule for scores, or rows belong to other sites.
std::string WhyDeviates(const Program& program, const InferResult& expected, const InferResult& result);

bool HaveSameBytes(const InferResult& a, const InferResult& b);

}  // namespace voxserve
