#pragma once

// ServedModel holds a model version that is ready to run, and what the batcher and the workers have learned about it.
//
// - Terms: a program is a network compiled for one device. A plan says how each convolution of the program runs.
// - Threads: a ServedModel is constant once it is served, except `plans` and each device's `latency`, `selection` and
//   `memory`, which are thread-safe.
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
  // The version's program for one device, and what the device's batches have taught about it.
  struct OnDevice {
    // Copies what the version that this one replaces has learned on the same device.
    void StartAs(const OnDevice& other) const {
      latency->StartAs(*other.latency);
      selection->StartAs(*other.selection);
      memory->StartAs(*other.memory);
    }

    Program program;
    PlanKey plan_key;
    std::unique_ptr<LatencyFit> latency = std::make_unique<LatencyFit>();
    std::unique_ptr<SelectionFit> selection = std::make_unique<SelectionFit>();
    std::unique_ptr<MemoryModel> memory = std::make_unique<MemoryModel>();
  };

  ModelVersionInfo info;
  // For the programs' weights on the host. Declared before `on_device`, so that it is destroyed after them.
  MemoryBudget::Reservation host_memory;
  std::vector<OnDevice> on_device;  // in the order of the engine's devices
  // A key that is equal for two versions if they launch the same kernels by their default plans: they are the same
  // network with other weights. ModelBuilder then skips the warm-up.
  std::string kernels;
  RunLimits limits;
  std::unique_ptr<ModelPlans> plans;
  ModelConfig::Batching batching;

  // Returns the first device's program. Use it only for properties that are the same on every device.
  const Program& program() const { return on_device.front().program; }
};
using ModelHandle = std::shared_ptr<const ServedModel>;

}  // namespace voxserve
