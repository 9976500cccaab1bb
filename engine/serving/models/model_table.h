#pragma once

// ModelTable lists the versions of all models and their states: loading, ready (in service) or failed. The engine owns
// one.
//
// - Ownership: a ModelHandle is a shared pointer to a ready version. A task's handle keeps the version alive, whatever
//   the table does meanwhile. The table never releases a handle under its lock.
// - Threads: thread-safe. Only ModelManager writes.

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
  // Lists a version as loading, until SetReady or SetFailed is called. Does nothing if the version is in service.
  void AddLoading(const std::string& name, int64_t version);
  // Puts a version into service. Returns the handle of the same version's earlier build that it replaces, or null.
  ModelHandle SetReady(ModelHandle model);
  // Sets a version's problems, and lists the version as failed unless it is in service. A version in service stays so,
  // and the problems are those of a new build that should replace it. An empty list clears the problems.
  void SetFailed(const std::string& name, int64_t version, std::vector<std::string> problems);
  // Removes a version from the list. Returns its handle if it was in service, else null. by_call: a call unloaded the
  // version; later errors for this version say so.
  ModelHandle Remove(const std::string& name, int64_t version, bool by_call);
  // Removes all versions.
  void Clear();

  // Returns the names of all models, sorted.
  std::vector<std::string> Names() const;
  // Versions returns the model's listed versions, and ReadyVersions those in service. Both are in ascending order, and
  // empty if there is no such model.
  std::vector<int64_t> Versions(const std::string& name) const;
  std::vector<int64_t> ReadyVersions(const std::string& name) const;

  // Returns the version to run. version 0: the newest that is ready. Returns NOT_FOUND if the model or the version is
  // not listed (MODEL_NOT_FOUND, VERSION_NOT_FOUND; the message lists the existing ones), and UNAVAILABLE if the
  // version (of version 0: every version) is not ready (MODEL_LOADING, MODEL_FAILED).
  absl::StatusOr<ModelHandle> Find(std::string_view name, int64_t version) const;

  // Returns all listed versions, sorted by name, then by version.
  std::vector<ModelVersionInfo> List() const;
  // Describes one version. version 0: the newest that is ready, or the newest if none is ready. Returns NOT_FOUND if
  // the model or the version is not listed.
  absl::StatusOr<ModelVersionInfo> Describe(std::string_view name, int64_t version) const;

 private:
  struct Entry {
    ModelVersionInfo info;
    ModelHandle handle;  // null unless ready
  };
  using Entries = std::map<int64_t, Entry>;  // by version

  // Returns the entry's info, with the current plan_source.
  static ModelVersionInfo InfoOf(const Entry& entry);
  // Returns the entry that Describe describes.
  absl::StatusOr<const Entry*> FindEntry(std::string_view name, int64_t version) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Returns a clause for an error message if a call unloaded the version, else "". version 0: any version.
  std::string HintOf(const std::string& name, int64_t version) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Entries> models_ ABSL_GUARDED_BY(mutex_);  // by name; every model has entries
  // By name: the versions that a call unloaded and that were not put into service again.
  std::map<std::string, std::set<int64_t>> unloaded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
