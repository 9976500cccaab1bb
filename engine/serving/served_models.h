#pragma once

// Which versions of which models there are, and how they stand. The loader writes, everybody reads.
//
// A ModelHandle keeps its version alive for as long as a task holds it, whatever the table does meanwhile.
//
// Thread-safe.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/graph/executor.h"
#include "engine/graph/program.h"
#include "engine/serving/engine.h"
#include "engine/serving/model_plans.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

// A version that is ready.
struct ServedModel {
  ModelVersionInfo info;
  std::vector<Program> programs;  // by device, in the order of the engine's; they differ in where their weights lie
  RunLimits limits;
  std::vector<PlanKey> plan_keys;  // by device
  std::unique_ptr<ModelPlans> plans;

  // For what is the same on every device.
  const Program& program() const { return programs.front(); }
};
using ModelHandle = std::shared_ptr<const ServedModel>;

class ServedModels {
 public:
  // A version that was found in the repository; it counts as loading until one of the next two is called.
  void AddLoading(const std::string& name, int64_t version);
  void SetReady(ModelHandle model);
  void SetFailed(const std::string& name, int64_t version, std::vector<std::string> problems);

  // The version to run; 0: the newest that is ready. NOT_FOUND (MODEL_NOT_FOUND, VERSION_NOT_FOUND) lists what is
  // there, UNAVAILABLE is MODEL_LOADING or MODEL_FAILED.
  absl::StatusOr<ModelHandle> Find(std::string_view name, int64_t version) const;

  std::vector<ModelVersionInfo> List() const;
  // version 0: the newest that is ready, else the newest. NOT_FOUND as in Find.
  absl::StatusOr<ModelVersionInfo> Describe(std::string_view name, int64_t version) const;

 private:
  struct Entry {
    ModelVersionInfo info;
    ModelHandle handle;  // null unless ready
  };
  using Versions = std::map<int64_t, Entry>;

  // As it stands now.
  static ModelVersionInfo InfoOf(const Entry& entry);
  // The entry as Describe says.
  absl::StatusOr<const Entry*> FindEntry(std::string_view name, int64_t version) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Versions, std::less<>> models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
