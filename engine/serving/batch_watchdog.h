#pragma once

// BatchWatchdog finds batches that run far longer than predicted. A GPU that hangs answers no call, so no other part
// would notice.
//
// - Limit: a batch is stuck if it has run for longer than `least_time` and longer than `factor` times its prediction. A
//   batch without a prediction, the first of its size, may take 10 times `least_time`.
// - Report: for each stuck batch, once: an error in the log, EngineObserver::OnStuckBatch, then `on_stuck`.
// - Clock: it is monotonic. One look adds two periods to a batch's time at most, so the time in which the whole process
//   stood still (a suspended machine, a debugger) or got no CPU does not count.
// - Threads: thread-safe. A thread of its own looks once a second, more often where least_time is short.

#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
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
    std::function<absl::Duration()> now = SteadyClock;  // monotonic, from any beginning
    bool has_thread = true;                             // false: only callers of Look look
  };

  // A batch that begins to run. Its pointers must outlive the watch.
  struct Batch {
    const ModelVersionInfo* model = nullptr;
    std::string_view device;
    int64_t requests = 0;
    int64_t points = 0;
    absl::Duration predicted;  // device time; zero: none
  };

  // Watches a batch for as long as it lives.
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
    absl::Duration begin_;
    absl::Duration elapsed_;
    bool is_stuck_ = false;
  };

  explicit BatchWatchdog(Options options);
  // By then every watch must have ended.
  ~BatchWatchdog();
  BatchWatchdog(const BatchWatchdog&) = delete;
  BatchWatchdog& operator=(const BatchWatchdog&) = delete;

  // Reports the batches that are stuck by now.
  void Look();

 private:
  struct Stuck;

  static absl::Duration SteadyClock();
  absl::Duration LimitOf(const Batch& batch) const;
  void Report(const Stuck& stuck) const;
  void Loop();

  const Options options_;
  const absl::Duration period_;

  absl::Mutex mutex_;
  std::vector<Watch*> watches_ ABSL_GUARDED_BY(mutex_);
  absl::Duration looked_ ABSL_GUARDED_BY(mutex_);
  SteadyNotification stopping_;
  std::thread thread_;
};

}  // namespace voxserve
