#pragma once

// The calls of the AdminService that are under way.
//
// A call is gRPC's until its OnDone and the engine's until that has let go of its task; the first to need it keeps it
// alive here.
//
// Thread-safe.

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace voxserve {

class AdminCall {
 public:
  virtual ~AdminCall() = default;
  // Ends the call at once, from any thread: the server drains.
  virtual void Drain() = 0;
};

class AdminCalls {
 public:
  // Keeps the call until Release. False where the server drains.
  bool Hold(std::shared_ptr<AdminCall> call);
  void Release(const std::shared_ptr<AdminCall>& call);

  // From now on Hold says no. Drains those that are held.
  void StartDraining();

 private:
  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<AdminCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
