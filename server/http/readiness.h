#pragma once

// Whether this server should get requests, and why not: loaded, a model ready, not draining. /readyz, gRPC's health
// service and the status page all ask here. And whether each model should: a version of it ready, not draining.
//
// Thread-safe. The listener is told of every change of an answer, in order, on the thread that caused it, and once with
// each first answer; it must not call back.

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
  // OK, or UNAVAILABLE with the reason as its message: "loading models", "no model is ready", "draining".
  absl::Status Get() const;

  void OnModelState(std::string_view model, int64_t version, bool ready);
  void SetLoaded();
  void SetDraining();

  // model "": the server.
  using Listener = std::function<void(const std::string& model, bool ready)>;
  void SetListener(Listener listener);

 private:
  absl::Status GetLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellOf(const std::string& model, bool ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  // By model; none where it is known and not ready.
  std::map<std::string, std::set<int64_t>> ready_versions_ ABSL_GUARDED_BY(mutex_);
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  Listener listener_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, bool> told_ ABSL_GUARDED_BY(mutex_);  // by model; "": the server
};

}  // namespace voxserve
