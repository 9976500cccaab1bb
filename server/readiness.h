#pragma once

// Whether this server should get requests, and why not: loaded, a model ready, not draining. /readyz, gRPC's health
// service and the status page all ask here.
//
// Thread-safe. The listener is told of every change of the answer, in order, on the thread that caused it, and once
// with the first answer; it must not call back.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

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

  void SetListener(std::function<void(bool ready)> listener);

 private:
  absl::Status GetLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::set<std::pair<std::string, int64_t>> ready_models_ ABSL_GUARDED_BY(mutex_);
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void(bool)> listener_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
