#pragma once

// The queue between Submit and the workers.
//
// A task is the batcher's from Push until Pop hands it out or Cancel, expiry or Stop ends it; each ends in exactly one
// call of its `done`, made without the lock. A batch closes when a worker asks for one, and holds one task: batches of
// several are to be formed in Pop, the only place that knows both the queue and an idle worker.
//
// Thread-safe. Push never blocks; Pop does.

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/serving/engine.h"
#include "engine/serving/served_models.h"

namespace voxserve {

struct QueuedTask {
  uint64_t ticket = 0;
  InferTask task;
  ModelHandle model;  // keeps the version alive
  std::chrono::steady_clock::time_point enqueued = std::chrono::steady_clock::now();
};

struct Batch {
  std::vector<QueuedTask> tasks;  // of one model version
};

class Batcher {
 public:
  struct Options {
    int64_t max_queue_requests = 0;  // waiting per model
    int64_t max_queue_bytes = 0;     // of clouds waiting per model
    EngineObserver* observer = nullptr;
  };

  explicit Batcher(Options options) : options_(options) {}

  // RESOURCE_EXHAUSTED (QUEUE_FULL, with a retry delay) or UNAVAILABLE (DRAINING): the task is not taken, and its
  // `done` is left to the caller.
  absl::Status Push(QueuedTask& task);

  // True if the task was waiting; its `done` has got CANCELLED then, or DEADLINE_EXCEEDED where its deadline had
  // passed.
  bool Cancel(uint64_t ticket);

  // Blocks until there is work. An empty batch means that the batcher has stopped and nothing is left. Tasks whose
  // deadline has passed are answered DEADLINE_EXCEEDED here and not handed out.
  Batch Pop();

  // The batch that Pop handed out has been answered.
  void Finished(const Batch& batch);

  // Takes no more tasks. Those waiting are still handed out.
  void Stop();

  // Blocks until every task taken has been answered.
  void WaitUntilIdle();

 private:
  struct Waiting {
    int64_t requests = 0;
    int64_t bytes = 0;
  };

  // End a task that has left the queue without running.
  void Answer(QueuedTask task, const char* fate, const absl::Status& status);
  void Expire(QueuedTask task);

  void Remove(std::deque<QueuedTask>::iterator position, QueuedTask& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<QueuedTask> queue_ ABSL_GUARDED_BY(mutex_);  // in order of arrival
  absl::flat_hash_map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
