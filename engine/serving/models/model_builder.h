#pragma once

// ModelBuilder makes a ServedModel from a version's files: the compiled program for every device, the limits and the
// tuned plans. It also warms the version up. ModelManager owns one.
//
// - Threads: not thread-safe. Only ModelManager's thread calls it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <stop_token>
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
    // All objects that these point to must outlive the builder.
    const std::vector<Device>* devices = nullptr;
    const std::vector<std::unique_ptr<DeviceArbiter>>* arbiters = nullptr;  // by device
    kernels::ThreadPool* pool = nullptr;
    PlanStore* plan_store = nullptr;
    EngineObserver* observer = nullptr;  // may be null
    int64_t max_grid_bytes = 0;          // Engine::Options::max_grid_bytes
    std::string engine_version;          // plans that were tuned by another version are not used
    bool is_deterministic = false;       // Engine::Options::deterministic
    // Warms up the workers of a GPU in their own contexts. Called only for the first version that is warmed up, while
    // the workers are idle.
    std::function<absl::Status(size_t device, const ServedModel& model)> warm_up_workers;
  };

  explicit ModelBuilder(Options options) : options_(std::move(options)), warm_(options_.devices->size()) {}

  // Returns the version with the default plan, not warmed up. Errors are those of MakeProgram: INVALID_ARGUMENT if a
  // weight exceeds the range of its type, RESOURCE_EXHAUSTED if a device has no memory for the weights, UNAVAILABLE
  // (DRAINING) if `stop` is requested, INTERNAL.
  absl::StatusOr<std::unique_ptr<ServedModel>> Make(const std::string& name, int64_t version, const LoadedModel& loaded,
                                                    const std::stop_token& stop = {}) const;
  // Puts the tuned plans that exist into the version. Returns true if every device has a tuned plan. If
  // is_deterministic is set, uses none and returns true.
  bool FindPlans(const ServedModel& model, const std::filesystem::path& version_folder) const;
  // Runs the version on every GPU, so that its first request is as quick as later ones. Does nothing on a CPU. The
  // first version of all is warmed up in the workers' own contexts. Later versions are warmed up in a context of low
  // priority, so that no request waits for them. A version with the default plan is not warmed up if the same network,
  // with other weights, was. An error is logged, and the version serves all the same. No further GPU is begun when
  // `stop` is requested.
  void WarmUp(const ServedModel& model, const std::stop_token& stop);
  // Returns the memory of versions that were destroyed from the memory pools to the GPUs. Waits for the GPUs' loading
  // streams.
  void ReturnMemory() const;

  const std::vector<Device>& devices() const { return *options_.devices; }

 private:
  absl::Status WarmUpOn(size_t device, const ServedModel& model, bool is_first) const;

  const Options options_;
  bool is_first_ = true;
  std::vector<std::set<std::string>> warm_;  // by device: ServedModel::kernels of the versions warmed up there
};

}  // namespace voxserve
