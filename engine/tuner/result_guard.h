#pragma once

// Whether a plan's result may stand in for the default plan's. Plans differ in the order of additions, so results agree
// to rounding, not in bytes; one plan's runs among themselves agree in bytes unless its dataflow says otherwise.

#include <string>

#include "engine/compiler/program.h"
#include "engine/tensor/infer_result.h"

namespace voxserve {

// Why not; "" where it may. With scores: one that is off by more than 2% of the largest, or that is not finite where
// the other is. Without: labels that differ for more than 0.5% of the points. With boxes: more than 10% of both
// results' boxes have no like in the other, of their class within 0.2 m and 0.05 of their score; two may always change.
// With tensors: values by the rule of scores, or rows of other sites.
std::string WhyDeviates(const Program& program, const InferResult& expected, const InferResult& result);

bool HaveSameBytes(const InferResult& a, const InferResult& b);

}  // namespace voxserve
