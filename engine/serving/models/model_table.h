#pragma once

// ModelTable tells which versions of which models there are, and how they stand.
//
// - Ownership: a ModelHandle keeps its version alive for as long as a task holds it, whatever the table does meanwhile.
//   The table lets go of a handle outside its lock.
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
  // A version that was found in the repository; it counts as loading until one of the next two is called. One that is
  // in service stays so.
  void AddLoading(const std::string& name, int64_t version);
  // Returns the one that it replaces; null: none.
  ModelHandle SetReady(ModelHandle model);
  // A version that is in service, whose successor this is about, stays so, and shows the problems (none: no longer).
  void SetFailed(const std::string& name, int64_t version, std::vector<std::string> problems);
  // Returns what it served; null: nothing. `by_call`: whoever asks for it is told that it was unloaded.
  ModelHandle Remove(const std::string& name, int64_t version, bool by_call);
  void Clear();

  std::vector<std::string> Names() const;
  // Ascending; none where there is no such model.
  std::vector<int64_t> Versions(const std::string& name) const;
  std::vector<int64_t> ReadyVersions(const std::string& name) const;

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
  using Entries = std::map<int64_t, Entry>;  // by version

  // As it stands now.
  static ModelVersionInfo InfoOf(const Entry& entry);
  // The entry as Describe says.
  absl::StatusOr<const Entry*> FindEntry(std::string_view name, int64_t version) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // What to say of those that were taken out by call: "", or a clause. version 0: of any.
  std::string HintOf(const std::string& name, int64_t version) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Entries> models_ ABSL_GUARDED_BY(mutex_);  // none is empty
  std::map<std::string, std::set<int64_t>> unloaded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
