#pragma once

// A model on a device: its program there, and what a tuned plan for it must be true for.

#include <string>

#include "absl/status/statusor.h"
#include "engine/compiler/program.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"
#include "engine/runtime/devices.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

// Compiled with the default plan, its weights on the device. INVALID_ARGUMENT where a weight is beyond its type,
// RESOURCE_EXHAUSTED for memory, INTERNAL where the CPU's library refuses a convolution of images.
absl::StatusOr<Program> MakeProgram(const Graph& graph, const ModelConfig& config, const Device& device,
                                    bool is_deterministic = false);

PlanKey MakePlanKey(const Graph& graph, const ModelConfig& config, const Device& device,
                    const std::string& engine_version);

}  // namespace voxserve
