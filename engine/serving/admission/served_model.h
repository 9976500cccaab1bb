#pragma once

// ServedModel holds a model version that is ready to run, with all that the batcher and the workers know of it.
//
// - Threads: constant once it is served, but for `plans`, `latency`, `sampling` and `memory`, which are thread-safe.
// - Owners: handles share it; the last one to go frees its weights (ModelManager).

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
  MemoryBudget::Reservation host_memory;  // of the weights that the programs hold on the host; ends after them
  std::vector<Program> programs;  // by device, in the order of the engine's; they differ in where their weights lie
  // Equal for versions that launch the same kernels by their default plans: those of one network with other weights.
  std::string kernels;
  RunLimits limits;
  std::vector<PlanKey> plan_keys;  // by device
  std::unique_ptr<ModelPlans> plans;
  ModelConfig::Batching batching;
  std::vector<std::unique_ptr<LatencyFit>> latency;  // by device, as are the next two
  std::vector<std::unique_ptr<SampleFit>> sampling;
  std::vector<std::unique_ptr<MemoryModel>> memory;

  // For what is the same on every device.
  const Program& program() const { return programs.front(); }
};
using ModelHandle = std::shared_ptr<const ServedModel>;

}  // namespace voxserve
