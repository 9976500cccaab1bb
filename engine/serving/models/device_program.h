#pragma once

// Makes a model's program for one device, and the key that a tuned plan for it must match.

#include <string>

#include "absl/status/statusor.h"
#include "engine/compiler/program.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"
#include "engine/runtime/devices.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

// Compiles the graph with the default plan and copies its weights to the device. INVALID_ARGUMENT if a weight exceeds
// the range of its type, RESOURCE_EXHAUSTED for memory, INTERNAL if the CPU's library refuses an image convolution.
absl::StatusOr<Program> MakeProgram(const Graph& graph, const ModelConfig& config, const Device& device,
                                    bool is_deterministic = false);

PlanKey MakePlanKey(const Graph& graph, const ModelConfig& config, const Device& device,
                    const std::string& engine_version);

}  // namespace voxserve
