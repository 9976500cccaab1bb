#pragma once

// These functions make a model's program (its network, compiled for one device), and the key that a tuned plan must
// have to be used for the program. They have no state; ModelBuilder calls them.

#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "engine/compiler/program.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"
#include "engine/runtime/devices.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

// Compiles the graph with the default plan and copies its weights to the device. Returns INVALID_ARGUMENT if a weight
// exceeds the range of its type, if the precision is PRECISION_INT8 and the device is a GPU that does not multiply in 8
// bits, or if the model is wrong for that precision (CheckInt8). Returns RESOURCE_EXHAUSTED if the device has no memory
// for the weights, UNAVAILABLE (DRAINING) if `stop` is requested, and INTERNAL if the CPU's library (oneDNN) refuses an
// image convolution.
absl::StatusOr<Program> MakeProgram(const Graph& graph, const ModelConfig& config, const Device& device,
                                    bool is_deterministic = false, const std::stop_token& stop = {});

// Returns INVALID_ARGUMENT (BAD_MODEL) if the config has PRECISION_INT8 and the GPU does not multiply in 8 bits.
// multiplies_in_int8: whether it does (kernels/conv/implicit_gemm/int8_implicit_gemm.h).
absl::Status CheckInt8Device(const Graph& graph, const ModelConfig& config, const Device& gpu, bool multiplies_in_int8);

// Returns the key of the program's tuned plans: the model's digest, the device's model, the precision and the versions
// of the engine and of CUDA.
PlanKey MakePlanKey(const Graph& graph, const ModelConfig& config, const Device& device,
                    const std::string& engine_version);

}  // namespace voxserve
