#pragma once

// An activation, as model.textproto has it.

#include <optional>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// Empty, and a problem that `at` reports for the node, where the function or its slope is wrong.
std::optional<ActivationOp> ReadActivation(const model::v1::Activation& proto, const ProblemsAt& at);

}  // namespace voxserve
