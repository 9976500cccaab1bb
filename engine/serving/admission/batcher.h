#pragma once

// Batcher is the queue between Submit and the workers: it admits tasks and forms batches of them. TaskQueue orders the
// tasks, LatencyModel predicts when they end, MemoryModel how many fit a batch.
//
// - Ownership: the batcher owns a task from Push until Pop hands it out, or until it expires, is cancelled or is
//   evicted. Each of those ends calls the task's `done` once, without the lock.
// - Admission: a task is refused at once if it is predicted to end after its deadline, or to start after the model's
//   max_queue_delay. If more workers are idle than tasks wait, every task that has not expired is admitted and runs,
//   so that predictions that are too high get corrected.
// - Order: by level. Within a level models take turns, each with a share of the device by its weight (ModelTurns).
//   Within a model clients (InferTask::client) take turns, each with an equal share of the model's (ClientTurns).
//   Among the clients whose turn it is, the one with the most urgent task comes first. Urgency is the latest start that
//   meets the deadline. A task that has waited for half of its time, or of max_queue_delay, moves to level 0.
// - Promises: a prediction counts the tasks of the level whose turns come first, and expects other clients to go on as
//   they did recently. So a client or a model with few requests is admitted however many another has. The prediction
//   holds while no further client or model comes to the level and none sends more than before. A newcomer takes its
//   turns and no more: each of n waiting clients keeps 1/n of its model's share of the device. A task that can no
//   longer meet its deadline is dropped (DEADLINE_UNMEETABLE) when its turn comes.
// - Levels above 0: a client that comes to such a level may find tasks of another client that were promoted to level 0.
//   It waits for all of them, until it has waited for half of its own time.
// - Room: a full queue refuses. But a task whose client, with this task, holds no more than its share of the room (the
//   room that more urgent levels leave, divided by the clients that wait at the task's level) replaces the newest task
//   of the client that holds most there. If there are as many clients as places, a further client is refused.
// - Batches: a batch closes as soon as a worker asks. It holds tasks of one model version that ask for the same tensors
//   in the same type, since a batch computes and copies for all samples what one of its tasks asks for. It takes the
//   task whose turn it is, then further tasks by turns. Each must fit the BatchLimits, and the batch with it must be
//   predicted (by an upper bound) to meet every deadline that it would meet without it. A task that does not fit is
//   skipped if it can wait until this batch ends. A task that would end late is skipped if its level has several
//   clients, since it would take their places in vain. Levels below another model's most urgent task are left out.
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
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
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
  std::vector<QueuedTask> tasks;  // of one model version, all for the same tensors, in the order of their turns
  size_t device = 0;              // the device that it was formed for
  uint64_t id = 0;
  Load load;
  absl::Duration predicted;    // device time; zero where nothing is known yet
  int level = 0;               // the level of the task whose turn it was
  double charged_seconds = 0;  // device time charged to its model's turns when it began
};

class Batcher {
 public:
  struct Options {
    int64_t max_queue_requests = 0;  // limit of waiting tasks per model, where the model's own limit is 0
    int64_t max_queue_bytes = 0;     // limit of the bytes of waiting clouds per model
    // The number of batches that run side by side, by device. Every version's `latency` has an entry per device.
    std::vector<int> num_workers = {1};
    MaxBatchBytes max_batch_bytes = NoLimitOfBytes;  // called under the lock
    EngineObserver* observer = nullptr;
    std::function<absl::Time()> now = SteadyNow;
    bool has_timer = true;  // false: nothing expires unless ExpireDue is called
  };

  explicit Batcher(Options options);
  // By then every task must have been answered, and no worker may wait in Pop.
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // Queues the task. On an error it does not take it, and leaves its `done` to the caller: UNAVAILABLE (DRAINING),
  // INVALID_ARGUMENT (BAD_PRIORITY), DEADLINE_EXCEEDED (DEADLINE_EXPIRED, it has passed; DEADLINE_UNMEETABLE),
  // RESOURCE_EXHAUSTED (QUEUE_FULL, with a retry delay). If the model's queue is full, a more urgent task replaces a
  // task of the client that holds most at the least urgent priority, and a task of a client below its share one of the
  // client that holds most at the same priority. The newest task of that client is replaced and gets QUEUE_FULL. A task
  // without a deadline gets the model's default one.
  absl::Status Push(QueuedTask& task);

  // Removes a waiting task. Returns true if it was waiting; then its `done` got CANCELLED, or DEADLINE_EXCEEDED if its
  // time was over. reason: passed to OnDropped.
  bool Cancel(uint64_t ticket, DropReason reason = DropReason::kCancelled);

  // Blocks until there is work for the device, and returns a batch. Leaves a task to a worker that waits on another
  // device if the task is expected to end sooner there. An empty batch means that the batcher has stopped and nothing
  // is left. Expired tasks and tasks that can no longer meet their deadline get DEADLINE_EXCEEDED and are not returned.
  Batch Pop(size_t device);
  // Returns a batch without blocking; an empty one where nothing waits, or where there was no memory to form it.
  Batch TryPop(size_t device);

  // The result of a batch, for learning.
  struct Outcome {
    std::optional<int64_t> num_voxels;  // of all samples; none if a sample failed
    bool in_parts = false;              // it ran in parts, so its time is not that of a batch of its size
    bool had_room = true;               // false: it ran in parts because it did not fit the memory
    double sample_share = 0;            // the share of its time that Stage::kSample took, 0 to 1
  };
  // Reports that a batch of Pop has been answered.
  void Finished(const Batch& batch, const Outcome& outcome);

  // Reports that a worker of the device takes no more batches; its last one has been Finished.
  void RemoveWorker(size_t device);

  // Answers the tasks whose time in the queue is over. NextExpiry returns the time of the next such task;
  // InfiniteFuture where none waits.
  void ExpireDue();
  absl::Time NextExpiry() const;

  // Takes no more tasks. Those waiting are still handed out.
  void Stop();
  // Stops, and answers every waiting task with UNAVAILABLE, reason DRAINING.
  void StopAndRefuse();

  // Blocks until every task taken has been answered.
  void WaitUntilIdle();

  // Returns the number of workers that wait in Pop.
  int num_waiting_workers() const;

 private:
  // A task that left the queue without running, and the reason.
  struct Ended {
    std::unique_ptr<WaitingTask> task;
    DropReason reason = DropReason::kCancelled;
    absl::Status status;
  };

  // Returns the task to queue, with all but `queued` set, or the reason to refuse it.
  absl::StatusOr<std::unique_ptr<WaitingTask>> Admit(const QueuedTask& task, absl::Time now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns OK if there is room. May make room by evicting less urgent tasks or tasks of clients above their share.
  absl::Status MakeRoom(const QueuedTask& task, const WaitingTask& waiting, std::vector<Ended>& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Returns true if the task's client holds no more than its share of its model's queue, together with the task.
  bool IsWithinShare(const QueuedTask& task, const WaitingTask& waiting, int64_t max_requests) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Teaches the model's predictions what a batch took.
  void Learn(const Batch& batch, const Outcome& outcome, absl::Duration device_time) const;

  bool HasWorkFor(size_t device) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Batch Form(size_t device, std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the lead and the tasks that share its batch.
  std::vector<WaitingTask*> Fill(WaitingTask* lead, size_t device, absl::Time now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Takes the task out of the queue, to be answered. Where there is no memory (std::bad_alloc) the task still waits.
  void End(WaitingTask* task, DropReason reason, absl::Status status, std::vector<Ended>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire(WaitingTask* task, absl::Time now, std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveDepth(const std::string& model) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Answer(std::vector<Ended> ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunTimer();

  const Options options_;
  mutable absl::Mutex mutex_;
  SteadyCondVar first_expiry_changed_;
  // The time at which the timer's thread wakes by itself; InfinitePast while it does not sleep. It is not woken early
  // when the task that it sleeps for leaves, and so a request that comes to an empty queue need not wake it.
  absl::Time timer_wakes_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);  // tasks that the timer's thread answers
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
