#include "engine/serving/admission/batcher.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory_resource>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/base/tell_done.h"
#include "engine/serving/admission/drop_reason.h"

namespace voxserve {
namespace {

// The most tasks that are considered for one batch.
constexpr int kMaxCandidates = 64;

// The most device time of a batch that is charged to its model's turns: the larger of kMostCharged times its prediction
// and kLeastCharge seconds.
constexpr double kMostCharged = 3;
constexpr double kLeastCharge = 0.1;

// The pause after std::bad_alloc, before the batcher tries again to form a batch or to expire tasks.
constexpr absl::Duration kMemoryPause = absl::Milliseconds(5);

// More than the nodes of a task in the queue take.
constexpr size_t kQueueNodesBytes = 16 << 10;

// Added to the time after which a refused request could just be in time.
constexpr absl::Duration kLeastRetryDelay = absl::Milliseconds(1);

std::string Format(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Microseconds(100)));
}

absl::Status Unmeetable(std::string message) {
  return WithReason(absl::DeadlineExceededError(message), error_reason::kDeadlineUnmeetable);
}

}  // namespace

Batcher::Batcher(Options options)
    : options_(std::move(options)), latency_(options_.num_workers), num_waiting_workers_(options_.num_workers.size()) {
  if (options_.has_timer) timer_ = std::thread([this] { RunTimer(); });
}

Batcher::~Batcher() {
  {
    absl::MutexLock lock(&mutex_);
    timer_ends_ = true;
    first_expiry_changed_.Signal();
  }
  if (timer_.joinable()) timer_.join();
}

absl::Status Batcher::Push(QueuedTask& task) {
  std::vector<Ended> evicted;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = options_.now();
    queue_.Promote(now);
    std::unique_ptr<WaitingTask> waiting;
    try {
      absl::StatusOr<std::unique_ptr<WaitingTask>> admitted = Admit(task, now);
      status = admitted.ok() ? MakeRoom(task, **admitted, evicted) : admitted.status();
      if (status.ok()) {
        // TaskQueue::Add ends the process if there is no memory for its nodes. What is freed here is there for them.
        std::pmr::memory_resource* const heap = std::pmr::new_delete_resource();
        heap->deallocate(heap->allocate(kQueueNodesBytes), kQueueNodesBytes);
        waiting = *std::move(admitted);
      }
    } catch (const std::bad_alloc&) {  // The tasks that were evicted must still be answered.
      status = out_of_memory_;
    }
    if (status.ok()) {
      task.enqueued = now;
      task.task.deadline = waiting->deadline;
      waiting->queued = std::move(task);
      const WaitingTask* added = queue_.Add(std::move(waiting));
      ++num_unanswered_;
      if (added->expiry < timer_wakes_) first_expiry_changed_.Signal();
      ObserveDepth(added->queued.model->info.name);
    }
  }
  Answer(std::move(evicted));
  if (!status.ok() && options_.observer != nullptr) {
    if (const auto reason = DropReasonOf(status)) options_.observer->OnDropped(task.model->info.name, *reason);
  }
  return status;
}

absl::StatusOr<std::unique_ptr<WaitingTask>> Batcher::Admit(const QueuedTask& task, absl::Time now) const {
  const ServedModel& model = *task.model;
  if (stopped_) return DrainingError();
  if (absl::Status status = CheckPriority(model.info, task.task.priority); !status.ok()) return status;
  if (task.task.deadline <= now) {
    return WithReason(absl::DeadlineExceededError("the deadline had passed when the request arrived"),
                      error_reason::kDeadlineExpired);
  }
  auto waiting = std::make_unique<WaitingTask>(task, latency_, now);
  waiting->found_idle_worker = latency_.num_idle_workers() > queue_.size();
  if (waiting->found_idle_worker) return waiting;
  const absl::Duration max_delay = model.batching.max_queue_delay;
  const LatencyModel::Run predicted = latency_.PredictRun(
      model, waiting->load, queue_.WorkAhead(waiting->level, model, task.task.client), options_.max_batch_bytes, now);
  if (now + predicted.end > waiting->deadline) {
    return WithRetryDelay(
        Unmeetable(absl::StrCat("the answer is expected ", Format(predicted.end), " from now, after the deadline in ",
                                Format(waiting->deadline - now))),
        predicted.end - (waiting->deadline - now) + kLeastRetryDelay);
  }
  if (predicted.start >= max_delay) {
    return WithRetryDelay(
        Unmeetable(absl::StrCat("the request is expected to wait ", Format(predicted.start),
                                " in the queue; the limit of model \"", model.info.name, "\" is ", Format(max_delay))),
        predicted.start - max_delay + kLeastRetryDelay);
  }
  return waiting;
}

absl::Status Batcher::MakeRoom(const QueuedTask& task, const WaitingTask& waiting, std::vector<Ended>& evicted) {
  const ServedModel& model = *task.model;
  const std::string& name = model.info.name;
  const int64_t own_limit = model.batching.max_queue_requests;
  const int64_t max_requests = own_limit > 0 ? own_limit : options_.max_queue_requests;
  const auto check = [&](const WorkSize& load) {
    if (load.requests >= max_requests) {
      return QueueFullError(absl::StrCat("the queue of model \"", name, "\" is full: ", load.requests,
                                         " requests waiting, limit ", max_requests));
    }
    if (load.requests > 0 && load.bytes + waiting.load.bytes > options_.max_queue_bytes) {
      return QueueFullError(absl::StrCat("the queue of model \"", name, "\" is full: ", load.bytes,
                                         " bytes waiting, limit ", options_.max_queue_bytes));
    }
    return absl::OkStatus();
  };
  WorkSize stays = queue_.OfModel(name);
  if (absl::Status status = check(stays); status.ok()) return status;
  stays -= queue_.LessUrgentThan(name, waiting.level);
  if (absl::Status status = check(stays); !status.ok() && !IsWithinShare(task, waiting, max_requests)) return status;
  const auto evict = [&](WaitingTask* other, const char* who) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    End(other, DropReason::kQueueFull,
        QueueFullError(absl::StrCat("the queue of model \"", name, "\" is full: a request of ", who, " came")),
        evicted);
  };
  for (;;) {
    const WorkSize load = queue_.OfModel(name);
    if (check(load).ok()) return absl::OkStatus();
    const auto size = load.requests >= max_requests ? &WorkSize::requests : &WorkSize::bytes;
    if (queue_.LessUrgentThan(name, waiting.level).requests > 0) {
      evict(queue_.LeastUrgent(name, size), "a more urgent level");
    } else {
      // Another client must hold more than its share; otherwise there would be room.
      evict(queue_.NewestOfLargestHold(name, waiting.level, size), "a client that holds less of it");
    }
  }
}

bool Batcher::IsWithinShare(const QueuedTask& task, const WaitingTask& waiting, int64_t max_requests) const {
  const std::string& model = task.model->info.name;
  WorkSize more_urgent = queue_.OfModel(model);
  more_urgent -= queue_.LessUrgentThan(model, waiting.level - 1);
  const TaskQueue::Holds holds = queue_.HoldsOf(model, waiting.level, task.task.client);
  return (holds.own.requests + 1) * holds.num_clients <= max_requests - more_urgent.requests &&
         (holds.own.bytes + waiting.load.bytes) * holds.num_clients <= options_.max_queue_bytes - more_urgent.bytes;
}

void Batcher::End(WaitingTask* task, DropReason reason, absl::Status status, std::vector<Ended>& ended) {
  ended.push_back({.task = nullptr, .reason = reason, .status = std::move(status)});
  ended.back().task = queue_.Remove(task);
  ObserveDepth(ended.back().task->queued.model->info.name);
}

// Called under the lock, so that the gauge gets changes in order.
void Batcher::ObserveDepth(const std::string& model) const {
  try {
    const int64_t depth = queue_.OfModel(model).requests;
    if (options_.on_queue_depth) {
      options_.on_queue_depth(model, depth);
    } else if (options_.observer != nullptr) {
      options_.observer->OnQueueDepth(model, depth);
    }
  } catch (const std::bad_alloc&) {  // then the gauge lacks this change
  }
}

void Batcher::Expire(WaitingTask* task, absl::Time now, std::vector<Ended>& ended) {
  const bool is_deadline = task->deadline <= now;
  const std::string waited = Format(now - task->queued.enqueued);
  const std::string message =
      is_deadline ? absl::StrCat("the deadline passed after ", waited, " in the queue")
                  : absl::StrCat("the request has waited ", waited, " in the queue, the limit of model \"",
                                 task->queued.model->info.name, "\"");
  End(task, DropReason::kExpired, WithReason(absl::DeadlineExceededError(message), error_reason::kDeadlineExpired),
      ended);
}

void Batcher::Answer(std::vector<Ended> ended) {
  if (ended.empty()) return;
  for (Ended& end : ended) {
    const QueuedTask& queued = end.task->queued;
    try {
      if (options_.observer != nullptr) options_.observer->OnDropped(queued.model->info.name, end.reason);
    } catch (const std::bad_alloc&) {  // then the counter lacks this task
    }
    TellDone(queued.task.done, end.status);
    end.task.reset();
  }
  absl::MutexLock lock(&mutex_);
  num_unanswered_ -= static_cast<int64_t>(ended.size());
}

bool Batcher::Cancel(uint64_t ticket, DropReason reason) {
  std::vector<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    WaitingTask* task = queue_.Find(ticket);
    if (task == nullptr) return false;
    // gRPC also cancels calls whose deadline has passed; such a task counts as expired, not as cancelled.
    if (const absl::Time now = options_.now(); task->expiry - kDeadlineTransit <= now) {
      Expire(task, now, ended);
    } else {
      End(task, reason, WithReason(absl::CancelledError("cancelled before it ran"), error_reason::kCancelled), ended);
    }
  }
  Answer(std::move(ended));
  return true;
}

bool Batcher::HasWorkFor(size_t device) const {
  if (queue_.empty()) return false;
  const WaitingTask& task = *queue_.First();
  for (size_t i = 0; i < num_waiting_workers_.size(); ++i) {
    const bool waits = i != device && num_waiting_workers_[i] > 0;
    if (waits && latency_.EndsSooner(*task.queued.model, task.load, i, device)) return false;
  }
  return true;
}

Batch Batcher::Pop(size_t device) {
  for (;;) {
    Batch batch;
    std::vector<Ended> ended;
    bool is_over = false;
    bool has_memory = true;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this, device]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || HasWorkFor(device); };
      ++num_waiting_workers_[device];
      mutex_.Await(absl::Condition(&has_work));
      --num_waiting_workers_[device];
      is_over = stopped_ && queue_.empty();
      try {
        batch = Form(device, ended);
        if (options_.has_timer && !ended.empty()) {
          // Leaves the answers to the timer's thread: the batch's model is charged from now on, so it should start at
          // once.
          ended_.reserve(ended_.size() + ended.size());
          std::move(ended.begin(), ended.end(), std::back_inserter(ended_));
          ended.clear();
          first_expiry_changed_.Signal();
        }
      } catch (const std::bad_alloc&) {
        has_memory = false;  // The batch's tasks still wait, or `batch` has them.
      }
    }
    Answer(std::move(ended));
    if (is_over || !batch.tasks.empty()) return batch;
    if (!has_memory) absl::SleepFor(kMemoryPause);
  }
}

Batch Batcher::TryPop(size_t device) {
  Batch batch;
  std::vector<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    try {
      batch = Form(device, ended);
    } catch (const std::bad_alloc&) {  // The batch's tasks still wait.
    }
  }
  Answer(std::move(ended));
  return batch;
}

Batch Batcher::Form(size_t device, std::vector<Ended>& ended) {
  const absl::Time now = options_.now();
  queue_.Promote(now);
  Batch batch;
  batch.device = device;
  while (WaitingTask* lead = queue_.First()) {
    const absl::Time end = now + LatencyModel::Expected(*lead->queued.model, device, lead->load);
    if (lead->expiry <= now) {
      Expire(lead, now, ended);
    } else if (end > lead->deadline && !lead->found_idle_worker) {
      End(lead, DropReason::kGivenUp,
          Unmeetable(absl::StrCat("after ", Format(now - lead->queued.enqueued),
                                  " in the queue the answer was expected ", Format(end - lead->deadline),
                                  " after the deadline")),
          ended);
    } else {
      const std::vector<WaitingTask*> tasks = Fill(lead, device, now);
      batch.tasks.reserve(tasks.size());
      double costs = 0;  // sum over the tasks, each run alone
      for (const WaitingTask* task : tasks) {
        batch.load += task->load;
        costs += task->cost;
      }
      batch.id = next_batch_++;
      batch.level = lead->level;
      batch.predicted = LatencyModel::Expected(*lead->queued.model, device, batch.load);
      const bool is_known = batch.predicted > absl::ZeroDuration();
      batch.charged_seconds = is_known ? absl::ToDoubleSeconds(batch.predicted) : costs;
      latency_.Start(device, batch.id, batch.predicted, now);
      // From here on nothing may run out of memory: a task that has left the queue would be lost.
      for (WaitingTask* task : tasks) {
        const double seconds = batch.charged_seconds * task->cost / costs;
        batch.tasks.push_back(std::move(queue_.Run(task, seconds)->queued));
      }
      ObserveDepth(batch.tasks.front().model->info.name);
      break;
    }
  }
  return batch;
}

std::vector<WaitingTask*> Batcher::Fill(WaitingTask* lead, size_t device, absl::Time now) const {
  const ServedModel& model = *lead->queued.model;
  const auto end_of = [&](const WorkSize& load) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return now + latency_.BoundBesideOthers(model, device, load);
  };
  int max_level = std::numeric_limits<int>::max();  // the most urgent level at which another version has a task
  for (const auto& [other, version] : queue_.versions()) {
    if (other != &model) max_level = std::min(max_level, version.num_by_level.begin()->first);
  }

  // Leaves a share of the tasks to each idle worker.
  const TaskQueue::Version& waiting = queue_.versions().at(&model);
  const int num_idle = std::accumulate(num_waiting_workers_.begin(), num_waiting_workers_.end(), 0);
  const int64_t share = (waiting.num_tasks + num_idle) / (1 + num_idle);  // rounded up
  const BatchLimits limits = MemoryModel::LimitsOf(model, device, options_.max_batch_bytes(device));
  const int64_t max_requests = std::min(limits.max_requests, share);

  std::vector<WaitingTask*> tasks = {lead};
  WorkSize load = lead->load;
  absl::Time end = end_of(load);
  // A larger batch must end by this time, so that it keeps the deadlines that it meets now and starts the tasks that it
  // skipped in time.
  absl::Time must_end = absl::InfiniteFuture();
  if (lead->deadline >= end) must_end = lead->deadline;
  int num_candidates = 0;
  for (const auto& [level, num_tasks] : waiting.num_by_level) {
    if (level > max_level) break;
    ClientTurns::Cursor turns = queue_.TasksOf(&model, level);
    while (WaitingTask* task = turns.Next()) {
      if (task == lead) {
        turns.Take();
        continue;
      }
      if (static_cast<int64_t>(tasks.size()) >= max_requests || ++num_candidates > kMaxCandidates) return tasks;
      if (task->expiry <= now) continue;
      const InferTask& asked = task->queued.task;
      WorkSize grown = load;
      grown += task->load;
      if (!HaveSameTensors(lead->queued.task, asked) || grown.points > limits.max_points ||
          LatencyModel::Expected(model, device, grown) > options_.max_batch_time) {
        if (task->latest_start < end) return tasks;
        must_end = std::min(must_end, task->latest_start);
        continue;
      }
      const absl::Time grown_end = end_of(grown);
      // The task would be late, and take the place of another client's task.
      if (task->deadline < grown_end && turns.is_shared()) continue;
      if (grown_end > must_end) return tasks;
      load = grown;
      end = grown_end;
      tasks.push_back(task);
      turns.Take();
      if (task->deadline >= end) must_end = std::min(must_end, task->deadline);
    }
  }
  return tasks;
}

void Batcher::Finished(const Batch& batch, const Outcome& outcome) {
  const ServedModel& model = *batch.tasks.front().model;
  absl::Duration device_time;
  {
    absl::MutexLock lock(&mutex_);
    device_time = latency_.Finish(batch.device, batch.id, options_.now());
    // Bounds the charge, since a stall is not the model's use of the device.
    const double most_seconds = std::max(kLeastCharge, kMostCharged * batch.charged_seconds);
    const double used_seconds = std::min(absl::ToDoubleSeconds(device_time), most_seconds);
    queue_.Correct(model.info.name, batch.level, used_seconds - batch.charged_seconds);
  }
  try {
    if (options_.observer != nullptr) options_.observer->OnDeviceTime(model.info.name, device_time);
    Learn(batch, outcome, device_time);
  } catch (const std::bad_alloc&) {  // then nothing is learned
  }
  absl::MutexLock lock(&mutex_);
  num_unanswered_ -= static_cast<int64_t>(batch.tasks.size());
}

void Batcher::Learn(const Batch& batch, const Outcome& outcome, absl::Duration device_time) const {
  const ServedModel& model = *batch.tasks.front().model;
  const WorkSize& load = batch.load;
  const ServedModel::OnDevice& learned = model.on_device[batch.device];
  const bool is_typical = IsTypical(model.info, batch.tasks.front().task);
  if (!outcome.had_room && is_typical) learned.memory->DidNotFit(load.points);
  if (outcome.num_voxels && (outcome.in_parts || !is_typical)) {
    if (load.unseen_points == 0) learned.latency->ObserveVoxels(load.points, *outcome.num_voxels);
  } else if (outcome.num_voxels) {
    // The points of a batch with samples say little about memory, since the network sees fewer of them.
    if (load.selections == 0) learned.memory->Fit(load.points, load.requests);
    const double sample_share = load.selections == 0 ? 0 : outcome.sample_share;
    learned.selection->Observe(load, sample_share * device_time);
    learned.latency->Observe(
        {.points = load.network_points(), .voxels = *outcome.num_voxels, .requests = load.requests},
        (1 - sample_share) * device_time,
        load.unseen_points == 0 ? LineFit::Voxels::kEstimated : LineFit::Voxels::kNotTypical);
    if (options_.observer != nullptr && batch.predicted > absl::ZeroDuration()) {
      options_.observer->OnPrediction(model.info.name, batch.predicted, device_time);
    }
  }
}

void Batcher::RemoveWorker(size_t device) {
  absl::MutexLock lock(&mutex_);
  latency_.RemoveWorker(device);
}

void Batcher::ExpireDue() {
  std::vector<Ended> ended;
  bool has_memory = true;
  {
    absl::MutexLock lock(&mutex_);
    ended.swap(ended_);
    const absl::Time now = options_.now();
    try {
      for (WaitingTask* task = queue_.FirstToExpire(); task != nullptr && task->expiry <= now;
           task = queue_.FirstToExpire()) {
        Expire(task, now, ended);
      }
    } catch (const std::bad_alloc&) {
      has_memory = false;  // The other tasks still wait, and expire at the next try.
    }
  }
  Answer(std::move(ended));
  if (!has_memory) absl::SleepFor(kMemoryPause);
}

absl::Time Batcher::NextExpiry() const {
  absl::MutexLock lock(&mutex_);
  const WaitingTask* task = queue_.FirstToExpire();
  return task == nullptr ? absl::InfiniteFuture() : task->expiry;
}

void Batcher::RunTimer() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      for (;;) {
        if (timer_ends_) return;
        const WaitingTask* first = queue_.FirstToExpire();
        const absl::Time expiry = first == nullptr ? absl::InfiniteFuture() : first->expiry;
        if (expiry <= options_.now() || !ended_.empty()) break;
        timer_wakes_ = expiry;
        first_expiry_changed_.WaitUntil(&mutex_, expiry);
        timer_wakes_ = absl::InfinitePast();
      }
    }
    ExpireDue();
  }
}

void Batcher::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void Batcher::StopAndRefuse() {
  for (bool is_done = false; !is_done;) {
    std::vector<Ended> ended;
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
      try {
        while (WaitingTask* task = queue_.FirstToExpire()) End(task, DropReason::kDraining, DrainingError(), ended);
        is_done = true;
      } catch (const std::bad_alloc&) {  // The other tasks still wait.
      }
    }
    Answer(std::move(ended));
    if (!is_done) absl::SleepFor(kMemoryPause);
  }
}

void Batcher::WaitUntilIdle() {
  absl::MutexLock lock(&mutex_);
  const auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_unanswered_ == 0; };
  mutex_.Await(absl::Condition(&is_idle));
}

int Batcher::num_waiting_workers() const {
  absl::MutexLock lock(&mutex_);
  return std::accumulate(num_waiting_workers_.begin(), num_waiting_workers_.end(), 0);
}

absl::Time Batcher::timer_wakes() const {
  absl::MutexLock lock(&mutex_);
  return timer_wakes_;
}

}  // namespace voxserve
