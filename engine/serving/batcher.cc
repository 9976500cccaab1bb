#include "engine/serving/batcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

// What a refused client is told to wait: about the time in which a queue moves on.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);

int64_t BytesOf(const QueuedTask& task) { return static_cast<int64_t>(task.task.cloud.bytes().size()); }

absl::Status QueueFull(const std::string& model, const char* what, int64_t waiting, int64_t limit) {
  return WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(absl::StrCat("the queue of model \"", model, "\" is full: ", waiting, " ",
                                                           what, " waiting, limit ", limit)),
                 error_reason::kQueueFull),
      kRetryDelay);
}

}  // namespace

absl::Status Batcher::Push(QueuedTask& task) {
  const std::string model = task.task.model;
  const int64_t bytes = BytesOf(task);
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    Waiting& waiting = waiting_[model];
    if (stopped_) {
      refused = WithReason(absl::UnavailableError("the server is draining; send to another"), error_reason::kDraining);
    } else if (waiting.requests >= options_.max_queue_requests) {
      refused = QueueFull(model, "requests", waiting.requests, options_.max_queue_requests);
    } else if (waiting.requests > 0 && waiting.bytes + bytes > options_.max_queue_bytes) {
      refused = QueueFull(model, "bytes", waiting.bytes, options_.max_queue_bytes);
    } else {
      ++waiting.requests;
      waiting.bytes += bytes;
      ++num_unanswered_;
      queue_.push_back(std::move(task));
      // Under the lock, as in Remove: the gauge sees changes in their order.
      if (options_.observer != nullptr) options_.observer->OnQueueDepth(model, waiting.requests);
    }
  }
  if (!refused.ok() && options_.observer != nullptr) {
    options_.observer->OnDropped(model, absl::IsUnavailable(refused) ? "draining" : "queue_full");
  }
  return refused;
}

void Batcher::Remove(std::deque<QueuedTask>::iterator position, QueuedTask& task) {
  task = std::move(*position);
  queue_.erase(position);
  Waiting& waiting = waiting_[task.task.model];
  --waiting.requests;
  waiting.bytes -= BytesOf(task);
  if (options_.observer != nullptr) options_.observer->OnQueueDepth(task.task.model, waiting.requests);
}

void Batcher::Answer(QueuedTask task, const char* fate, const absl::Status& status) {
  if (options_.observer != nullptr) options_.observer->OnDropped(task.task.model, fate);
  task.task.done(status);
  Batch batch;
  batch.tasks.push_back(std::move(task));
  Finished(batch);
}

void Batcher::Expire(QueuedTask task) {
  const absl::Duration waited = absl::FromChrono(std::chrono::steady_clock::now() - task.enqueued);
  Answer(std::move(task), "expired",
         WithReason(absl::DeadlineExceededError(
                        absl::StrCat("the deadline passed after ", absl::FormatDuration(waited), " in the queue")),
                    error_reason::kDeadlineExpired));
}

bool Batcher::Cancel(uint64_t ticket) {
  QueuedTask task;
  {
    absl::MutexLock lock(&mutex_);
    const auto position =
        std::find_if(queue_.begin(), queue_.end(), [&](const QueuedTask& queued) { return queued.ticket == ticket; });
    if (position == queue_.end()) return false;
    Remove(position, task);
  }
  // gRPC cancels a call whose deadline has passed: that is no wish of the client's.
  if (task.task.deadline <= absl::Now()) {
    Expire(std::move(task));
  } else {
    Answer(std::move(task), "cancelled",
           WithReason(absl::CancelledError("cancelled before it ran"), error_reason::kCancelled));
  }
  return true;
}

Batch Batcher::Pop() {
  for (;;) {
    Batch batch;
    QueuedTask task;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !queue_.empty(); };
      mutex_.Await(absl::Condition(&has_work));
      if (queue_.empty()) return batch;
      Remove(queue_.begin(), task);
    }
    if (task.task.deadline > absl::Now()) {
      batch.tasks.push_back(std::move(task));
      return batch;
    }
    Expire(std::move(task));
  }
}

void Batcher::Finished(const Batch& batch) {
  absl::MutexLock lock(&mutex_);
  num_unanswered_ -= static_cast<int64_t>(batch.tasks.size());
}

void Batcher::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void Batcher::WaitUntilIdle() {
  absl::MutexLock lock(&mutex_);
  const auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_unanswered_ == 0; };
  mutex_.Await(absl::Condition(&is_idle));
}

}  // namespace voxserve
