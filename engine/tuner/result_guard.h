#pragma once

// These functions check whether the result of a plan may replace the result of the default plan. Two plans add in
// different orders, so their results agree up to rounding, but not in every byte. Two runs of one plan agree in every
// byte unless the order of its sums changes from run to run. The search (plan_search.h) uses both functions.

#include <string>

#include "engine/compiler/program.h"
#include "engine/tensor/infer_result.h"

namespace voxserve {

// Returns why the result deviates from the expected one; "" if it does not. It deviates if it has another size, or
// - with scores: a score is off by more than 2% of the largest score, or is not finite where the expected score is;
// - without scores: more than 0.5% of the points have different labels;
// - with boxes: more than 10% of the boxes of both results, and more than 2, have no match in the other result. A match
//   is a box of the same class whose centre is within 0.2 m and whose score is within 0.05;
// - with tensors: a tensor's values break the rule for scores, or its rows belong to other sites.
std::string WhyDeviates(const Program& program, const InferResult& expected, const InferResult& result);

// Returns true if all outputs and tensors are equal in every byte.
bool HaveSameBytes(const InferResult& a, const InferResult& b);

}  // namespace voxserve
