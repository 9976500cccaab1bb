#pragma once

// Worker is one thread with one execution context (on a GPU, one stream and its memory): it takes batches from the
// batcher, runs them and answers their tasks. The engine owns the workers: two for the CPU, one of them for long
// requests, or streams_per_device for each GPU.
//
// - Lifetime: the thread ends when the batcher has stopped and no task waits. The destructor waits for the thread, so
//   the batcher must be stopped first.
// - Memory: a context keeps the host memory of a batch for the next batch. The worker frees it when the context is idle
//   (ReleaseIdleMemory). Also, every memory_age, it frees the memory if the context is on a GPU, or if a context on the
//   CPU keeps at least twice what the largest batch since the last check needed.
// - Errors: if a device breaks (DEVICE_FAILED), its worker calls on_device_failed once, and leaves the queue to the
//   workers that still work. The last working worker of the engine stays, and answers every task UNAVAILABLE, so that
//   no task waits for ever.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/steady_time.h"
#include "engine/executor/device_arbiter.h"
#include "engine/executor/executor.h"
#include "engine/runtime/devices.h"
#include "engine/runtime/execution_context.h"
#include "engine/serving/admission/batcher.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/batch_watchdog.h"
#include "engine/serving/short_sizes.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

class Worker {
 public:
  struct Options {
    int stream = 0;              // index of the context among those of its device
    size_t device = 0;           // index of the context's device in the engine's list
    Batcher* batcher = nullptr;  // outlives the worker
    // True: the batcher's tasks take long. The context then keeps no memory between batches, and is not warmed up.
    bool is_for_long = false;
    EngineObserver* observer = nullptr;               // outlives the worker; may be null
    BatchWatchdog* watchdog = nullptr;                // outlives the worker; null: its batches are not watched
    std::atomic<int>* num_working_workers = nullptr;  // of all devices; this worker included
    std::atomic<int64_t>* batch_bytes = nullptr;      // memory that all contexts of the device keep for batches
    MaxBatchBytes max_batch_bytes = UnlimitedBytes;
    DeviceArbiter* arbiter = nullptr;                           // the arbiter of the context's device
    ShortSizes* short_sizes = nullptr;                          // learns from batches of one request; may be null
    bool captures = false;                                      // RunOptions::captures
    absl::Duration memory_age = absl::Minutes(1);               // how often the context's kept memory is checked
    std::function<void(const absl::Status&)> on_device_failed;  // called from the worker's thread; may be empty
  };

  Worker(Options options, ExecutionContext context);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs a model on synthetic clouds in this worker's own context, so that the worker's first request of each size is
  // as quick as later ones. Runs on the caller's thread; this worker's batches wait meanwhile. Returns the error of the
  // first run that failed.
  absl::Status WarmUp(const ServedModel& model);

  // Frees the host memory that the context keeps, if no batch has run in it for idle_time. Returns false if a batch has
  // run since then, or runs now. May be called from any thread; does not block.
  bool ReleaseIdleMemory(absl::Duration idle_time);

  size_t device() const { return options_.device; }
  bool is_for_long() const { return options_.is_for_long; }

 private:
  void Loop();
  // Runs a batch and answers its tasks. A batch of several tasks that fails as a whole (it does not fit the memory or
  // exceeds a limit, for example) runs again in halves, so that no task fails because of others. If the device is
  // broken, the tasks get the error at once.
  Batcher::Outcome Run(absl::Span<QueuedTask> tasks, absl::Time started);
  BatchReport RunWithinMemory(const ServedModel& model, BatchTasks tasks, const WorkSize& load);
  BatchReport RunOrRefuse(const ServedModel& model, BatchTasks tasks, const WorkSize& load);
  // Adds the memory that the context keeps to options_.batch_bytes. On a GPU, frees the context's arenas if they exceed
  // max_batch_bytes; this must run within a call of the arbiter, since the arbiter also frees contexts' memory.
  void SettleMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_);
  void ReleaseHostMemory(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_);
  // Frees host memory that recent batches did not need, every memory_age. Called after a batch has been answered.
  void ReleaseOldMemory();
  void Report(absl::Span<const QueuedTask> tasks, const BatchReport& output, absl::Time started);

  const Options options_;
  ExecutionContext context_;
  absl::Mutex running_;  // held while the executor runs
  const std::unique_ptr<Executor> executor_;
  absl::Time last_run_ ABSL_GUARDED_BY(running_) = absl::InfinitePast();  // end of the last run
  absl::Time released_ ABSL_GUARDED_BY(running_) = SteadyNow();           // when host memory was freed last
  absl::Time looked_ ABSL_GUARDED_BY(running_) = SteadyNow();             // when ReleaseOldMemory checked last
  int64_t needed_bytes_ ABSL_GUARDED_BY(running_) = 0;                    // by the largest batch since looked_
  int64_t batch_bytes_ ABSL_GUARDED_BY(running_) = 0;                     // this worker's part of options_.batch_bytes
  absl::Status failed_;                                                   // OK until the device breaks
  bool is_last_ = false;  // true if no other worker was left when this one's device broke
  std::thread thread_;
};

}  // namespace voxserve
