#pragma once

// BatchWatchdog finds batches that run far longer than predicted. If a GPU hangs, calls to it do not return, so no
// other part of the engine would notice. The engine owns one, and each worker watches its batches with it.
//
// - Limit: a batch is stuck if it has run for longer than `least_time` and longer than `factor` times its prediction. A
//   batch without a prediction, since no batch of such a size has run before, may take 10 times `least_time`.
// - Report: for each stuck batch the watchdog logs an error, then calls EngineObserver::OnStuckBatch and `on_stuck`,
//   each once.
// - Clock: the clock is monotonic. A look adds at most two periods (the time between two looks) to a batch's time. So
//   nearly all of the time in which the whole process stood still (a suspended machine, a debugger) or got no CPU does
//   not count.
// - Threads: thread-safe. The watchdog has a thread that looks once a second, or more often if least_time is short. The
//   report runs on this thread.

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/periodic_thread.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/admission/model_version_info.h"

namespace voxserve {

class BatchWatchdog {
 public:
  struct Options {
    double factor = 50;                                 // 0 or more
    absl::Duration least_time = absl::Minutes(1);       // more than 0
    EngineObserver* observer = nullptr;                 // outlives the watchdog; may be null
    std::function<void()> on_stuck;                     // must not block; may be empty
    std::function<absl::Duration()> now = SteadyClock;  // a monotonic clock, with any zero
    bool has_thread = true;                             // false: batches are checked only when Look is called
  };

  // Describes a batch that begins to run. The objects that `model` and `device` point to must outlive the watch.
  struct Batch {
    const ModelVersionInfo* model = nullptr;
    std::string_view device;
    int64_t requests = 0;
    int64_t points = 0;
    absl::Duration predicted;  // device time; zero: there is no prediction
  };

  // A batch is watched for as long as its Watch lives. The worker makes one around each run of a batch.
  class Watch {
   public:
    // watchdog: outlives the watch; null: the batch is not watched.
    Watch(BatchWatchdog* watchdog, const Batch& batch);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    friend class BatchWatchdog;

    BatchWatchdog* const watchdog_;
    const Batch batch_;
    // Guarded by the watchdog's mutex.
    absl::Duration begin_;    // the clock's value when the watch began
    absl::Duration elapsed_;  // the batch's time so far, at the last look
    bool is_stuck_ = false;
  };

  // When the watchdog is destroyed, every watch must have ended.
  explicit BatchWatchdog(Options options);

  // Reports the batches that are stuck now and were not reported before.
  void Look();

 private:
  struct Stuck;

  static absl::Duration SteadyClock();
  absl::Duration LimitOf(const Batch& batch) const;
  void Report(const Stuck& stuck) const;

  const Options options_;
  const absl::Duration period_;

  absl::Mutex mutex_;
  std::vector<Watch*> watches_ ABSL_GUARDED_BY(mutex_);
  absl::Duration looked_ ABSL_GUARDED_BY(mutex_);
  std::optional<PeriodicThread> thread_;
};

}  // namespace voxserve
