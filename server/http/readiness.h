#pragma once

// Says whether this server should get requests, and why not: it must have loaded, have a ready model, and not be
// draining. /readyz, gRPC's health service and the status page use it. It also says whether each model should get
// requests: a version of it must be ready, and the server not draining.
//
// Thread-safe. The listener is told each first answer and every change, in order, on the thread that caused it. It must
// not call back.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace voxserve {

class Readiness {
 public:
  // Returns OK, or UNAVAILABLE with the reason as message: "loading models", "no model is ready", "draining".
  absl::Status Get() const;

  void OnModelState(std::string_view model, int64_t version, bool ready);
  void SetLoaded();
  void SetDraining();

  // model "" means the server.
  using Listener = std::function<void(const std::string& model, bool ready)>;
  void SetListener(Listener listener);

 private:
  absl::Status GetLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellOf(const std::string& model, bool ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  // Maps a model to its ready versions. The set is empty for a known model that is not ready.
  std::map<std::string, std::set<int64_t>> ready_versions_ ABSL_GUARDED_BY(mutex_);
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  Listener listener_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, bool> told_ ABSL_GUARDED_BY(mutex_);  // by model; "": the server
};

}  // namespace voxserve
