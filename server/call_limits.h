#pragma once

// What the service holds for its clients, bounded: calls and streams that are open, clouds of streams that wait or are
// kept as sweeps, and answers that have not left, which a client that does not read delays for as long as it likes.
// Beyond a bound there is RESOURCE_EXHAUSTED, reason QUEUE_FULL, with a retry delay.
//
// Thread-safe; nothing but AwaitReleases waits. Whatever was accepted or held is released by its holder.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

class CallLimits {
 public:
  struct Options {
    int64_t max_calls = 512;  // of Infer, held at once
    int64_t max_streams = 1024;
    // Of each of these, one alone may be larger.
    int64_t max_unsent_bytes = int64_t{2} << 30;  // of answers that have not left
    int64_t max_frame_bytes = int64_t{1} << 30;   // of clouds of streams' frames that have no answer yet
    int64_t max_sweep_bytes = int64_t{4} << 30;   // of sweeps that streams keep
  };

  explicit CallLimits(const Options& options) : options_(options) {}

  // UNAVAILABLE (DRAINING) from StartDraining on.
  absl::Status AcceptCall();
  void ReleaseCall();
  absl::Status AcceptStream();
  void ReleaseStream();

  absl::Status HoldAnswer(int64_t bytes);
  void ReleaseAnswer(int64_t bytes);
  absl::Status HoldFrame(int64_t bytes);
  void ReleaseFrame(int64_t bytes);
  absl::Status HoldSweep(int64_t bytes);
  void ReleaseSweeps(int64_t bytes);

  void StartDraining();

  // Blocks until every accepted call and stream has been released, or until the deadline. Returns how many have not.
  int64_t AwaitReleases(absl::Time deadline);

 private:
  absl::Status CheckDraining() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t frame_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sweep_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace voxserve
