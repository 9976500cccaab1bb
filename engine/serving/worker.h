#pragma once

// Worker is one thread with one execution context: it takes batches from the batcher, runs them and answers their
// tasks.
//
// - Lifetime: the thread ends when the batcher has stopped and is empty. The destructor waits for that, so stop the
//   batcher first.
// - Memory: a context on the CPU keeps the memory of a batch for the next. It gives it back when nothing runs
//   (ReleaseIdleMemory), and once a minute where it is twice what the largest batch of that minute needed.
// - Errors: a worker whose device breaks (DEVICE_FAILED) says so once and leaves the queue to the others. The last
//   worker stays and answers every task UNAVAILABLE, so that no task waits for ever.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/executor/device_arbiter.h"
#include "engine/executor/executor.h"
#include "engine/runtime/devices.h"
#include "engine/runtime/execution_context.h"
#include "engine/serving/admission/batcher.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/batch_watchdog.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

class Worker {
 public:
  struct Options {
    int stream = 0;                                   // number of the context among its device's
    size_t device = 0;                                // index of the context's device among the engine's
    Batcher* batcher = nullptr;                       // outlives the worker, as do the next two
    EngineObserver* observer = nullptr;               // may be null
    BatchWatchdog* watchdog = nullptr;                // outlives the worker; null: nobody watches its batches
    std::atomic<int>* num_working_workers = nullptr;  // this one included
    std::atomic<int64_t>* batch_bytes = nullptr;      // that all contexts of the device hold for batches
    MaxBatchBytes max_batch_bytes = NoLimitOfBytes;
    DeviceArbiter* arbiter = nullptr;                           // of the context's device
    bool captures = false;                                      // RunOptions', of a GPU
    absl::Duration memory_age = absl::Minutes(1);               // how often what the context keeps is looked at
    std::function<void(const absl::Status&)> on_device_failed;  // from the worker's thread; may be empty
  };

  Worker(Options options, ExecutionContext context);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs a model on clouds made for it, in this worker's own context, so that the worker's first request of that size
  // is as quick as the others. On the caller's thread; batches wait meanwhile.
  absl::Status WarmUp(const ServedModel& model);

  // Gives the host's memory back that the context keeps, where no batch has run for so long. False where one has, or
  // runs now. From any thread; does not block.
  bool ReleaseIdleMemory(absl::Duration idle_time);

  size_t device() const { return options_.device; }

 private:
  void Loop();
  // Answers the tasks of a batch. A batch that fails as a whole, for lack of memory or beyond a limit, runs again in
  // halves, so that no task fails because of others.
  Batcher::Outcome Run(absl::Span<QueuedTask> tasks, absl::Time started);
  BatchOutput RunWithinMemory(const ServedModel& model, BatchTasks tasks, const Load& load);
  BatchOutput RunOrRefuse(const ServedModel& model, BatchTasks tasks, const Load& load);
  // Counts what the context keeps. A GPU's gives its arenas back where they are more than its part of the device: the
  // arbiter must run this, since it releases the memory of contexts too.
  void SettleMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_);
  void ReleaseHostMemory(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_);
  // After the answers have left.
  void ReleaseOldMemory();
  void Report(absl::Span<const QueuedTask> tasks, const BatchOutput& output, absl::Time started);

  const Options options_;
  ExecutionContext context_;
  absl::Mutex running_;  // while the executor runs
  const std::unique_ptr<Executor> executor_;
  absl::Time last_run_ ABSL_GUARDED_BY(running_) = absl::InfinitePast();  // its end
  absl::Time released_ ABSL_GUARDED_BY(running_) = absl::Now();           // when the host's memory was given back
  absl::Time looked_ ABSL_GUARDED_BY(running_) = absl::Now();             // when it was last looked whether to do so
  int64_t needed_bytes_ ABSL_GUARDED_BY(running_) = 0;                    // by the largest batch since then
  int64_t batch_bytes_ ABSL_GUARDED_BY(running_) = 0;                     // this one's part of options_.batch_bytes
  absl::Status failed_;                                                   // OK until the device broke
  bool is_last_ = false;  // of the workers, after this one's device broke
  std::thread thread_;
};

}  // namespace voxserve
