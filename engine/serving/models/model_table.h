#pragma once

// ModelTable lists the versions of all models and their states.
//
// - Ownership: a ModelHandle keeps its version alive for as long as a task holds it, whatever the table does meanwhile.
//   The table releases a handle outside its lock.
// - Threads: thread-safe. The model manager writes, all others read.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/serving/admission/model_version_info.h"
#include "engine/serving/admission/served_model.h"

namespace voxserve {

class ModelTable {
 public:
  // Adds a version of the repository as loading, until SetReady or SetFailed is called. A version in service stays so.
  void AddLoading(const std::string& name, int64_t version);
  // Puts a version into service. Returns the version that it replaces; null: none.
  ModelHandle SetReady(ModelHandle model);
  // Sets a version's problems. If a version is in service, the problems are its successor's (none: they are cleared)
  // and it stays in service.
  void SetFailed(const std::string& name, int64_t version, std::vector<std::string> problems);
  // Removes a version. Returns its handle if it was in service, else null. by_call: errors for it will then say that it
  // was unloaded.
  ModelHandle Remove(const std::string& name, int64_t version, bool by_call);
  void Clear();

  std::vector<std::string> Names() const;
  // Both return versions in ascending order, or none if there is no such model.
  std::vector<int64_t> Versions(const std::string& name) const;
  std::vector<int64_t> ReadyVersions(const std::string& name) const;

  // Returns the version to run; 0: the newest that is ready. NOT_FOUND (MODEL_NOT_FOUND, VERSION_NOT_FOUND) lists what
  // exists, UNAVAILABLE is MODEL_LOADING or MODEL_FAILED.
  absl::StatusOr<ModelHandle> Find(std::string_view name, int64_t version) const;

  std::vector<ModelVersionInfo> List() const;
  // version 0: the newest that is ready, else the newest. NOT_FOUND as in Find.
  absl::StatusOr<ModelVersionInfo> Describe(std::string_view name, int64_t version) const;

 private:
  struct Entry {
    ModelVersionInfo info;
    ModelHandle handle;  // null unless ready
  };
  using Entries = std::map<int64_t, Entry>;  // by version

  // Returns the entry's info with the source of its current plan.
  static ModelVersionInfo InfoOf(const Entry& entry);
  // Returns the entry that Describe describes.
  absl::StatusOr<const Entry*> FindEntry(std::string_view name, int64_t version) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Returns a clause for an error if the version was unloaded by a call, else "". version 0: any version.
  std::string HintOf(const std::string& name, int64_t version) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Entries> models_ ABSL_GUARDED_BY(mutex_);  // by name; every model has entries
  std::map<std::string, std::set<int64_t>> unloaded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
