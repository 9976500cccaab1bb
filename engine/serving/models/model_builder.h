#pragma once

// ModelBuilder makes a servable version from a version's files: its programs on every device, its limits and its tuned
// plans. It also warms the version up.
//
// - Threads: the model manager's thread alone calls it.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/executor/device_arbiter.h"
#include "engine/model/model_version.h"
#include "engine/runtime/devices.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/models/model_table.h"
#include "engine/tuner/plan_store.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

class ModelBuilder {
 public:
  struct Options {
    // All outlive the builder.
    const std::vector<Device>* devices = nullptr;
    const std::vector<std::unique_ptr<DeviceArbiter>>* arbiters = nullptr;  // by device
    kernels::ThreadPool* pool = nullptr;
    PlanStore* plan_store = nullptr;
    EngineObserver* observer = nullptr;  // may be null
    int64_t max_grid_bytes = 0;          // as in Engine::Options
    std::string engine_version;
    bool is_deterministic = false;
    // Warms up the workers of a device in their own contexts. Called for the first version only, while the workers are
    // idle.
    std::function<absl::Status(size_t device, const ServedModel& model)> warm_up_workers;
  };

  explicit ModelBuilder(Options options) : options_(std::move(options)), warm_(options_.devices->size()) {}

  // Returns the version with the default plan, not warmed up. INVALID_ARGUMENT if a weight exceeds the range of its
  // type, RESOURCE_EXHAUSTED for memory.
  absl::StatusOr<std::unique_ptr<ServedModel>> Make(const std::string& name, int64_t version,
                                                    const LoadedModel& loaded) const;
  // Sets the tuned plans that exist. Returns true if every device has one.
  bool FindPlans(const ServedModel& model, const std::filesystem::path& version_folder) const;
  // Runs the version, so that its first request is as quick as the others. The first version warms up the workers' own
  // contexts. Later ones run in a context of low priority, so that no request waits for them, and not at all if the
  // same network ran before with other weights. Logs a lack of memory; the version serves all the same.
  void WarmUp(const ServedModel& model, const std::atomic<bool>& stopping);
  // Returns the memory of ended versions to the GPUs.
  void ReturnMemory() const;

  const std::vector<Device>& devices() const { return *options_.devices; }

 private:
  absl::Status WarmUpOn(size_t device, const ServedModel& model, bool is_first) const;

  const Options options_;
  bool is_first_ = true;
  std::vector<std::set<std::string>> warm_;  // by device: ServedModel::kernels
};

}  // namespace voxserve
