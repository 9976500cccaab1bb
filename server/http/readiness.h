#pragma once

// Readiness says whether this server should get requests, and if not, why: the server must have loaded its models, have
// a ready model, and not be draining (ending). /readyz, gRPC's health service and the status page show the answer.
// Readiness also says whether each model should get requests: one of its versions must be ready, and the server must
// not be draining.
//
// Thread-safe. The listener is called with the first answer for the server and for each model, then with every change,
// in order. It runs on the thread that caused the change, under the lock, so it must not call any method of Readiness.

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

  // Tells whether a version of a model answers requests. A model is ready while at least one of its versions is.
  void OnModelState(std::string_view model, int64_t version, bool ready);
  void SetLoaded();
  void SetDraining();

  // Receives an answer; model "" means the server. SetListener replaces the listener and calls the new one with every
  // present answer.
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
