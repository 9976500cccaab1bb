#pragma once

// ServedModel holds a model version that is ready to run, and what the batcher and the workers know about it.
//
// - Threads: constant once it is served, except `plans`, `latency`, `sampling` and `memory`, which are thread-safe.
// - Ownership: handles share it; after the last handle is gone its weights are freed (ModelManager).

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
#include "engine/serving/admission/sample_fit.h"
#include "engine/tuner/model_plans.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

struct ServedModel {
  ModelVersionInfo info;
  MemoryBudget::Reservation host_memory;  // for the programs' weights on the host; declared before them, to end after
  std::vector<Program> programs;          // by device, in the engine's order; they differ in where their weights lie
  // Equal for versions that launch the same kernels by their default plans: one network with other weights.
  std::string kernels;
  RunLimits limits;
  std::vector<PlanKey> plan_keys;  // by device
  std::unique_ptr<ModelPlans> plans;
  ModelConfig::Batching batching;
  std::vector<std::unique_ptr<LatencyFit>> latency;  // by device
  std::vector<std::unique_ptr<SampleFit>> sampling;  // by device
  std::vector<std::unique_ptr<MemoryModel>> memory;  // by device

  // Returns a program for properties that are the same on every device.
  const Program& program() const { return programs.front(); }
};
using ModelHandle = std::shared_ptr<const ServedModel>;

}  // namespace voxserve
