#pragma once

// Batcher is the queue between Submit and the workers: it admits tasks and forms batches of them. TaskQueue orders the
// tasks, LatencyModel predicts when they end, MemoryModel how many fit a batch.
//
// - Ownership: the batcher owns a task from Push until Pop hands it out, or until it expires, is cancelled or is
//   evicted. Each of those ends calls the task's `done` once, without the lock.
// - Admission: a task is refused at once if it is predicted to end after its deadline, or to start after the model's
//   max_queue_delay. Where more workers are idle than tasks wait, every task that has not expired is admitted and runs:
//   so predictions that are too high correct themselves.
// - Order: by level. Within a level models take turns, each with a share of the device by its weight (ModelTurns).
//   Within a model clients (InferTask::client) take turns, each with an equal share of the model's (ClientTurns); the
//   most urgent task of those whose turn it is comes first. Urgency is the latest start that meets the deadline. A task
//   that has waited for half of its time, or of max_queue_delay, goes to level 0.
// - Promises: the prediction counts what waits at the level as far as its turn comes first, and expects other clients
//   to go on as they did lately. So a client or a model with few requests is admitted however many another has. A
//   promise holds while no further client or model comes to the level and none sends more than before. One that does
//   takes its turns, and no more: each of n clients that wait keeps 1/n of its model's share of the device. A task that
//   cannot meet its deadline any more is given up (DEADLINE_UNMEETABLE) when it is first in turn.
// - Levels above 0: a client that comes there may find tasks of another that were promoted, and waits for all of them,
//   until it has waited for half of its own time.
// - Room: a full queue refuses. A task whose client holds, with it, no more than its share of the room (what more
//   urgent levels leave, by the number of clients that wait at its level) takes the place of the newest task of the
//   client that holds most there. As many clients as the queue has places keep out the next one.
// - Batches: a batch closes as soon as a worker asks, and holds tasks of one model version that ask for the same
//   tensors in the same type: a batch computes and copies what one of its tasks asks for of all samples. It takes the
//   task whose turn it is, then such tasks by turns. Each must fit the BatchLimits, and with it the batch must be
//   predicted (by an upper bound) to make every deadline that it would make without it. A task that does not fit is
//   passed over where it can wait for this batch to end. One that would end late does not ride along where a level has
//   several clients: it would take their places in vain. Tasks of a level below another model's most urgent one do not
//   ride along.
// - Expiry is exact: a thread sleeps until the first task expires.
// - Threads: thread-safe. Push never blocks; Pop does.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/load.h"
#include "engine/serving/admission/memory_model.h"
#include "engine/serving/admission/served_model.h"
#include "engine/serving/admission/task_queue.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

struct Batch {
  std::vector<QueuedTask> tasks;  // of one model version and the same tensors, in turn
  size_t device = 0;              // that it was formed for
  uint64_t id = 0;
  Load load;
  absl::Duration predicted;    // device time; zero where nothing is known yet
  int level = 0;               // of the task whose turn it was
  double charged_seconds = 0;  // device time that its model's turns were charged as it began
};

class Batcher {
 public:
  struct Options {
    int64_t max_queue_requests = 0;  // waiting per model, where the model's own limit is 0
    int64_t max_queue_bytes = 0;     // of clouds waiting per model
    // By device: batches that run there side by side. Every version's `latency` has an entry per device.
    std::vector<int> num_workers = {1};
    MaxBatchBytes max_batch_bytes = NoLimitOfBytes;  // called under the lock
    EngineObserver* observer = nullptr;
    std::function<absl::Time()> now = absl::Now;
    bool has_timer = true;  // false: nothing expires unless ExpireDue is called
  };

  explicit Batcher(Options options);
  // Every task has been answered, and no worker waits in Pop.
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // On an error the task is not taken, and its `done` is left to the caller: UNAVAILABLE (DRAINING), INVALID_ARGUMENT
  // (BAD_PRIORITY), DEADLINE_EXCEEDED (DEADLINE_EXPIRED: it has passed; DEADLINE_UNMEETABLE), RESOURCE_EXHAUSTED
  // (QUEUE_FULL, with a retry delay). A more urgent task that finds its model's queue full takes a place of the
  // client that holds most at the least urgent priority. A task of a client below its share takes a place of the one
  // that holds most at the same priority. The newest task of that client gets QUEUE_FULL. A task without a deadline
  // gets the model's default one.
  absl::Status Push(QueuedTask& task);

  // True if the task was waiting; its `done` has got CANCELLED then, or DEADLINE_EXCEEDED where its time was over.
  // reason: what OnDropped says of it.
  bool Cancel(uint64_t ticket, DropReason reason = DropReason::kCancelled);

  // Blocks until there is work for the device: others are left to a worker that waits on a device where they are
  // expected to end sooner. An empty batch means that the batcher has stopped and nothing is left. Tasks whose time is
  // over, and those that cannot meet their deadline any more, are answered DEADLINE_EXCEEDED and not handed out.
  Batch Pop(size_t device);
  // Does not block: an empty batch where nothing waits.
  Batch TryPop(size_t device);

  // What became of a batch.
  struct Outcome {
    std::optional<int64_t> num_voxels;  // of all samples; none where some failed
    bool in_parts = false;              // its time says nothing of a batch of its size
    bool had_room = true;               // false: it ran in parts for want of memory
    double sample_share = 0;            // of its time that Stage::kSample took, 0 to 1
  };
  // The batch that Pop handed out has been answered.
  void Finished(const Batch& batch, const Outcome& outcome);

  // A worker of the device will not ask again; what it holds has been Finished.
  void RemoveWorker(size_t device);

  // Answers the tasks whose time in the queue is over. NextExpiry: when that is the case for the next one;
  // InfiniteFuture where none waits.
  void ExpireDue();
  absl::Time NextExpiry() const;

  // Takes no more tasks. Those waiting are still handed out.
  void Stop();
  // Stops, and answers every task that waits UNAVAILABLE, reason DRAINING.
  void StopAndRefuse();

  // Blocks until every task taken has been answered.
  void WaitUntilIdle();

  // Workers that wait in Pop.
  int num_waiting_workers() const;

 private:
  // A task that has left the queue without running, and why.
  struct Ended {
    std::unique_ptr<WaitingTask> task;
    DropReason reason = DropReason::kCancelled;
    absl::Status status;
  };

  // Returns the task as it will wait, all but `queued` set, or why it is refused.
  absl::StatusOr<std::unique_ptr<WaitingTask>> Admit(const QueuedTask& task, absl::Time now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // OK where there is room, which less urgent tasks and clients with more than their share may have made.
  absl::Status MakeRoom(const QueuedTask& task, const WaitingTask& waiting, std::vector<Ended>& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Returns true if the task's client holds no more than its share of its model's queue, together with the task.
  bool IsWithinShare(const QueuedTask& task, const WaitingTask& waiting, int64_t max_requests) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  bool HasWorkFor(size_t device) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Batch Form(size_t device, std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The lead and those that share its batch.
  std::vector<WaitingTask*> Fill(WaitingTask* lead, size_t device, absl::Time now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  std::unique_ptr<WaitingTask> Remove(WaitingTask* task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Ended Expire(WaitingTask* task, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveDepth(const std::string& model) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Answer(std::vector<Ended> ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunTimer();

  const Options options_;
  mutable absl::Mutex mutex_;
  absl::CondVar first_expiry_changed_;
  // When the timer's thread wakes by itself; InfinitePast while it does not sleep. It sleeps on where the task has left
  // by then that it sleeps for: so a request that comes to an empty queue need not wake it.
  absl::Time timer_wakes_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);  // for the timer's thread to answer
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool timer_ends_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) = 1;
  TaskQueue queue_ ABSL_GUARDED_BY(mutex_);
  LatencyModel latency_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> num_waiting_workers_ ABSL_GUARDED_BY(mutex_);  // by device
  std::thread timer_;
};

}  // namespace voxserve
