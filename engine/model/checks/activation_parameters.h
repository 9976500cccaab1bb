#pragma once

// ReadActivation reads an activation of model.textproto.

#include <optional>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// Returns nullopt and reports a problem at `at` if the function or one of its parameters (slope, alpha, ...) is wrong.
std::optional<ActivationOp> ReadActivation(const model::v1::Activation& proto, const ProblemsAt& at);

}  // namespace voxserve
