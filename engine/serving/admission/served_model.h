#pragma once

// ServedModel holds a model version that is ready to run, and what the batcher and the workers have learned about it.
//
// - Terms: a program is a network compiled for one device. A plan says how each convolution of the program runs.
// - Threads: a ServedModel is constant once it is served, except `plans`, `latency`, `sampling` and `memory`, which are
//   thread-safe.
// - Ownership: ModelHandles share a ServedModel. When the last handle is gone, ModelManager frees the weights.

#include <memory>
#include <string>
#include <vector>

#include "engine/compiler/program.h"
#include "engine/executor/executor.h"
#include "engine/model/model_config.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/admission/latency_fit.h"
#include "engine/serving/admission/memory_model.h"
#include "engine/serving/admission/model_version_info.h"
#include "engine/serving/admission/selection_fit.h"
#include "engine/tuner/model_plans.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

struct ServedModel {
  ModelVersionInfo info;
  // For the programs' weights on the host. Declared before `programs`, so that it is destroyed after them.
  MemoryBudget::Reservation host_memory;
  std::vector<Program> programs;  // by device, in the order of the engine's devices
  // A key that is equal for two versions if they launch the same kernels by their default plans: they are the same
  // network with other weights. ModelBuilder then skips the warm-up.
  std::string kernels;
  RunLimits limits;
  std::vector<PlanKey> plan_keys;  // by device
  std::unique_ptr<ModelPlans> plans;
  ModelConfig::Batching batching;
  std::vector<std::unique_ptr<LatencyFit>> latency;     // by device
  std::vector<std::unique_ptr<SelectionFit>> sampling;  // by device
  std::vector<std::unique_ptr<MemoryModel>> memory;     // by device

  // Returns the first device's program. Use it only for properties that are the same on every device.
  const Program& program() const { return programs.front(); }
};
using ModelHandle = std::shared_ptr<const ServedModel>;

}  // namespace voxserve
