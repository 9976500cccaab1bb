#pragma once

// What the service holds for its clients, bounded: streams that are open, clouds of streams that wait or are kept as
// sweeps, and answers that have not left, which a client that does not read delays for as long as it likes. Beyond a
// bound there is RESOURCE_EXHAUSTED, reason QUEUE_FULL, with a retry delay.
//
// Calls that wait or run are not bounded here but by the engine, which knows each model's queue: models come and go.
//
// Thread-safe; nothing but AwaitReleases waits. Whatever was accepted or held is released by its holder.

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

class CallLimits {
 public:
  struct Options {
    int64_t max_answers = 4096;  // of Infer, that have not left; beyond them no call is accepted
    int64_t max_streams = 1024;
    // Of each of these, one alone may be larger.
    int64_t max_unsent_bytes = int64_t{2} << 30;  // of answers that have not left
    int64_t max_frame_bytes = int64_t{1} << 30;   // of clouds of streams' frames that have no answer yet
    int64_t max_sweep_bytes = int64_t{4} << 30;   // of sweeps that streams keep
  };

  explicit CallLimits(const Options& options) : options_(options) {}

  struct Held {
    int64_t calls = 0;  // of Infer, those among them whose answers are leaving included
    int64_t streams = 0;
    int64_t unsent_bytes = 0;
    int64_t frame_bytes = 0;
    int64_t sweep_bytes = 0;
  };

  // UNAVAILABLE (DRAINING) from StartDraining on. Each accepted call gets an answer, an error perhaps: StartAnswer when
  // gRPC is given it, then ReleaseCall when it has left.
  absl::Status AcceptCall();
  void StartAnswer();
  void ReleaseCall();
  absl::Status AcceptStream();
  void ReleaseStream();

  absl::Status HoldAnswer(int64_t bytes);
  void ReleaseAnswer(int64_t bytes);
  // in_place_of: of the bytes that are held those of what gives way to this one; they do not count against it. Until
  // they are released the bound may be exceeded by as many.
  absl::Status HoldFrame(int64_t bytes, int64_t in_place_of = 0);
  void ReleaseFrame(int64_t bytes);
  // The sweep's bytes are held for as long as the reservation lives, which may be longer than this object.
  absl::StatusOr<std::shared_ptr<const void>> HoldSweep(int64_t bytes, int64_t in_place_of = 0);

  void StartDraining();

  // Blocks until every accepted call and stream has been released, or until the deadline. Returns how many have not.
  int64_t AwaitReleases(absl::Time deadline);

  Held held() const;

 private:
  absl::Status CheckDraining() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  Held held_ ABSL_GUARDED_BY(mutex_);                // but for the sweeps
  int64_t num_answers_ ABSL_GUARDED_BY(mutex_) = 0;  // of held_.calls, those that are leaving
  // Grows under mutex_; reservations take from it wherever they end.
  const std::shared_ptr<std::atomic<int64_t>> sweep_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace voxserve
