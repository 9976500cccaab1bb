#include "engine/serving/admission/batcher.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/run_prediction.h"

namespace voxserve {
namespace {

// Tasks that are looked at to fill one batch.
constexpr int kMaxCandidates = 64;

int64_t BytesOf(const InferTask& task) {
  if (task.sweeps.empty()) return static_cast<int64_t>(task.cloud.bytes().size());
  int64_t bytes = 0;
  for (const PlacedSweep& placed : task.sweeps) bytes += static_cast<int64_t>(placed.sweep->cloud.bytes().size());
  return bytes;
}

std::string Format(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Microseconds(100)));
}

absl::Status Unmeetable(std::string message) {
  return WithReason(absl::DeadlineExceededError(message), error_reason::kDeadlineUnmeetable);
}

}  // namespace

Batcher::Batcher(Options options)
    : options_(std::move(options)),
      devices_(options_.num_workers.begin(), options_.num_workers.end()),
      num_waiting_workers_(options_.num_workers.size()) {
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
    auto waiting = std::make_unique<WaitingTask>();
    queue_.Promote(now);
    status = Admit(task, *waiting, now);
    if (status.ok()) status = MakeRoom(*task.model, *waiting, evicted);
    if (status.ok()) {
      task.enqueued = now;
      task.task.deadline = waiting->deadline;
      waiting->queued = std::move(task);
      const WaitingTask* added = queue_.Add(std::move(waiting));
      ++num_unanswered_;
      if (queue_.FirstToExpire() == added) first_expiry_changed_.Signal();
      ObserveDepth(added->queued.model->info.name);
    }
  }
  Answer(std::move(evicted));
  if (!status.ok() && options_.observer != nullptr) {
    if (const auto reason = DropReasonOf(status)) options_.observer->OnDropped(task.model->info.name, *reason);
  }
  return status;
}

absl::Status Batcher::Admit(const QueuedTask& task, WaitingTask& waiting, absl::Time now) const {
  const ServedModel& model = *task.model;
  const ModelConfig::Batching& batching = model.batching;
  if (stopped_) {
    return WithReason(absl::UnavailableError("the server is draining; send to another"), error_reason::kDraining);
  }
  if (absl::Status status = CheckPriority(model.info, task.task.priority); !status.ok()) return status;
  if (task.task.deadline <= now) {
    return WithReason(absl::DeadlineExceededError("the deadline had passed when the request arrived"),
                      error_reason::kDeadlineExpired);
  }
  waiting.level = task.task.priority;
  waiting.points = task.task.num_points();
  waiting.bytes = BytesOf(task.task);
  waiting.deadline = task.task.deadline == absl::InfiniteFuture() ? now + batching.default_timeout : task.task.deadline;
  const absl::Time longest_wait = now + batching.max_queue_delay;
  waiting.expiry = std::min(waiting.deadline, longest_wait);
  waiting.promotion = now + (waiting.expiry - now) / 2;
  absl::Duration alone;
  for (size_t i = 0; i < devices_.size(); ++i)
    alone = std::max(alone, BatchCosts(model, i).Expected(waiting.points, 1));
  waiting.latest_start = std::min(waiting.deadline - alone, longest_wait);
  // Not before those whose deadlines are close: they were admitted without it.
  const absl::Duration head_start = std::max(absl::ZeroDuration(), now - task.task.waiting_since);
  waiting.urgency =
      std::max(waiting.latest_start - head_start, std::min(waiting.latest_start, now + batching.max_queue_delay / 2));
  waiting.promotion -= head_start;

  int64_t num_idle = 0;
  for (const DeviceLoad& device : devices_) num_idle += std::max(0, device.num_workers() - device.num_running());
  waiting.found_idle_worker = num_idle > queue_.size();
  if (waiting.found_idle_worker) return absl::OkStatus();
  const RunPrediction predicted = PredictRun(queue_, devices_, options_.max_batch_bytes, model, waiting, now);
  if (now + predicted.end > waiting.deadline) {
    return Unmeetable(absl::StrCat("the answer is expected ", Format(predicted.end),
                                   " from now, after the deadline in ", Format(waiting.deadline - now)));
  }
  if (predicted.start >= batching.max_queue_delay) {
    return Unmeetable(absl::StrCat("the request is expected to wait ", Format(predicted.start),
                                   " in the queue; the limit of model \"", model.info.name, "\" is ",
                                   Format(batching.max_queue_delay)));
  }
  return absl::OkStatus();
}

absl::Status Batcher::MakeRoom(const ServedModel& model, const WaitingTask& task, std::vector<Ended>& evicted) {
  const std::string& name = model.info.name;
  const int64_t own_limit = model.batching.max_queue_requests;
  const int64_t max_requests = own_limit > 0 ? own_limit : options_.max_queue_requests;
  const auto check = [&](const TaskQueue::Load& load) {
    if (load.requests >= max_requests) {
      return QueueFullError(absl::StrCat("the queue of model \"", name, "\" is full: ", load.requests,
                                         " requests waiting, limit ", max_requests));
    }
    if (load.requests > 0 && load.bytes + task.bytes > options_.max_queue_bytes) {
      return QueueFullError(absl::StrCat("the queue of model \"", name, "\" is full: ", load.bytes,
                                         " bytes waiting, limit ", options_.max_queue_bytes));
    }
    return absl::OkStatus();
  };
  TaskQueue::Load stays = queue_.OfModel(name);
  if (absl::Status status = check(stays); status.ok()) return status;
  const TaskQueue::Load less_urgent = queue_.LessUrgentThan(name, task.level);
  stays.requests -= less_urgent.requests;
  stays.bytes -= less_urgent.bytes;
  if (absl::Status status = check(stays); !status.ok()) return status;
  while (!check(queue_.OfModel(name)).ok()) {
    evicted.push_back({.task = Remove(queue_.LeastUrgent(name)),
                       .reason = DropReason::kQueueFull,
                       .status = QueueFullError(absl::StrCat("the queue of model \"", name,
                                                             "\" is full: a request of a more urgent level came"))});
  }
  return absl::OkStatus();
}

std::unique_ptr<WaitingTask> Batcher::Remove(WaitingTask* task) {
  std::unique_ptr<WaitingTask> removed = queue_.Remove(task);
  ObserveDepth(removed->queued.model->info.name);
  return removed;
}

// Under the lock: the gauge sees changes in their order.
void Batcher::ObserveDepth(const std::string& model) const {
  if (options_.observer != nullptr) options_.observer->OnQueueDepth(model, queue_.OfModel(model).requests);
}

Batcher::Ended Batcher::Expire(WaitingTask* task, absl::Time now) {
  const bool is_deadline = task->deadline <= now;
  const std::string waited = Format(now - task->queued.enqueued);
  const std::string message =
      is_deadline ? absl::StrCat("the deadline passed after ", waited, " in the queue")
                  : absl::StrCat("the request has waited ", waited, " in the queue, the limit of model \"",
                                 task->queued.model->info.name, "\"");
  return {.task = Remove(task),
          .reason = DropReason::kExpired,
          .status = WithReason(absl::DeadlineExceededError(message), error_reason::kDeadlineExpired)};
}

void Batcher::Answer(std::vector<Ended> ended) {
  if (ended.empty()) return;
  for (Ended& end : ended) {
    const QueuedTask& queued = end.task->queued;
    if (options_.observer != nullptr) options_.observer->OnDropped(queued.model->info.name, end.reason);
    queued.task.done(end.status);
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
    // gRPC cancels a call whose deadline has passed: that is no wish of the client's.
    if (const absl::Time now = options_.now(); task->expiry <= now) {
      ended.push_back(Expire(task, now));
    } else {
      ended.push_back(
          {.task = Remove(task),
           .reason = reason,
           .status = WithReason(absl::CancelledError("cancelled before it ran"), error_reason::kCancelled)});
    }
  }
  Answer(std::move(ended));
  return true;
}

bool Batcher::HasWorkFor(size_t device) const {
  if (queue_.empty()) return false;
  const WaitingTask& task = *queue_.MostUrgent();
  // When it ends there, and among how many.
  const auto rank = [&](size_t i) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const int side_by_side = devices_[i].num_running() + 1;
    return std::make_pair(side_by_side * BatchCosts(*task.queued.model, i).Expected(task.points, 1), side_by_side);
  };
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (i != device && num_waiting_workers_[i] > 0 && rank(i) < rank(device)) return false;
  }
  return true;
}

Batch Batcher::Pop(size_t device) {
  for (;;) {
    Batch batch;
    std::vector<Ended> ended;
    bool is_over = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this, device]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || HasWorkFor(device); };
      ++num_waiting_workers_[device];
      mutex_.Await(absl::Condition(&has_work));
      --num_waiting_workers_[device];
      is_over = stopped_ && queue_.empty();
      batch = Form(device, ended);
      if (options_.has_timer && !ended.empty()) {
        // The batch should not wait for it, which is charged from now on.
        std::move(ended.begin(), ended.end(), std::back_inserter(ended_));
        ended.clear();
        first_expiry_changed_.Signal();
      }
    }
    Answer(std::move(ended));
    if (is_over || !batch.tasks.empty()) return batch;
  }
}

Batch Batcher::TryPop(size_t device) {
  Batch batch;
  std::vector<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    batch = Form(device, ended);
  }
  Answer(std::move(ended));
  return batch;
}

Batch Batcher::Form(size_t device, std::vector<Ended>& ended) {
  const absl::Time now = options_.now();
  queue_.Promote(now);
  Batch batch;
  batch.device = device;
  while (WaitingTask* lead = queue_.MostUrgent()) {
    const absl::Time end = now + BatchCosts(*lead->queued.model, device).Expected(lead->points, 1);
    if (lead->expiry <= now) {
      ended.push_back(Expire(lead, now));
    } else if (end > lead->deadline && !lead->found_idle_worker) {
      ended.push_back({.task = Remove(lead),
                       .reason = DropReason::kGivenUp,
                       .status = Unmeetable(absl::StrCat("after ", Format(now - lead->queued.enqueued),
                                                         " in the queue the answer was expected ",
                                                         Format(end - lead->deadline), " after the deadline"))});
    } else {
      int64_t points = 0;
      for (WaitingTask* task : Fill(lead, device, now)) {
        points += task->points;
        batch.tasks.push_back(std::move(Remove(task)->queued));
      }
      batch.id = next_batch_++;
      batch.points = points;
      batch.predicted =
          BatchCosts(*batch.tasks.front().model, device).Expected(points, static_cast<int64_t>(batch.tasks.size()));
      devices_[device].Start(batch.id, batch.predicted, now);
      break;
    }
  }
  return batch;
}

std::vector<WaitingTask*> Batcher::Fill(WaitingTask* lead, size_t device, absl::Time now) const {
  const ServedModel& model = *lead->queued.model;
  const BatchCosts costs(model, device);
  const int side_by_side = devices_[device].num_running() + 1;
  const auto end_of = [&](int64_t points, size_t requests) {
    return now + side_by_side * costs.Bound(points, static_cast<int64_t>(requests));
  };
  int max_level = std::numeric_limits<int>::max();  // the most urgent of another version has it
  for (const auto& [other, version] : queue_.versions()) {
    if (other != &model) max_level = std::min(max_level, (*version.tasks.begin())->level);
  }

  // Workers that wait take their share.
  const TaskQueue::Version& waiting = queue_.versions().at(&model);
  const int num_idle = std::accumulate(num_waiting_workers_.begin(), num_waiting_workers_.end(), 0);
  const int64_t share = (static_cast<int64_t>(waiting.tasks.size()) + num_idle) / (1 + num_idle);  // rounded up
  const BatchLimits limits(model, device, options_.max_batch_bytes(device));
  const int64_t max_requests = std::min<int64_t>(limits.max_requests, share);

  std::vector<WaitingTask*> tasks = {lead};
  int64_t points = lead->points;
  absl::Time end = end_of(points, 1);
  // What a larger batch must end by: deadlines that it makes, and latest starts of those that it passed over.
  absl::Time must_end = absl::InfiniteFuture();
  if (lead->deadline >= end) must_end = lead->deadline;
  int num_candidates = 0;
  for (WaitingTask* task : waiting.tasks) {
    if (task == lead) continue;
    if (static_cast<int64_t>(tasks.size()) >= max_requests || ++num_candidates > kMaxCandidates) break;
    if (task->level > max_level) break;
    if (task->expiry <= now) continue;
    if (points + task->points > limits.max_points) {
      if (task->latest_start < end) break;
      must_end = std::min(must_end, task->latest_start);
      continue;
    }
    const absl::Time grown_end = end_of(points + task->points, tasks.size() + 1);
    if (grown_end > must_end) break;
    points += task->points;
    end = grown_end;
    tasks.push_back(task);
    if (task->deadline >= end) must_end = std::min(must_end, task->deadline);
  }
  return tasks;
}

void Batcher::Finished(const Batch& batch, const Outcome& outcome) {
  const ServedModel& model = *batch.tasks.front().model;
  absl::Duration device_time;
  {
    absl::MutexLock lock(&mutex_);
    device_time = devices_[batch.device].Finish(batch.id, options_.now());
  }
  if (!outcome.had_room) model.room[batch.device]->DidNotFit(batch.points);
  if (outcome.num_voxels && outcome.in_parts) {
    model.latency[batch.device]->ObserveVoxels(batch.points, *outcome.num_voxels);
  } else if (outcome.num_voxels) {
    model.room[batch.device]->Fit(batch.points, static_cast<int64_t>(batch.tasks.size()));
    model.latency[batch.device]->Observe(
        {.points = batch.points, .voxels = *outcome.num_voxels, .requests = static_cast<int64_t>(batch.tasks.size())},
        device_time);
    if (options_.observer != nullptr && batch.predicted > absl::ZeroDuration()) {
      options_.observer->OnPrediction(model.info.name, batch.predicted, device_time);
    }
  }
  absl::MutexLock lock(&mutex_);
  num_unanswered_ -= static_cast<int64_t>(batch.tasks.size());
}

void Batcher::RemoveWorker(size_t device) {
  absl::MutexLock lock(&mutex_);
  devices_[device].RemoveWorker();
}

void Batcher::ExpireDue() {
  std::vector<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended.swap(ended_);
    const absl::Time now = options_.now();
    for (WaitingTask* task = queue_.FirstToExpire(); task != nullptr && task->expiry <= now;
         task = queue_.FirstToExpire()) {
      ended.push_back(Expire(task, now));
    }
  }
  Answer(std::move(ended));
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
        first_expiry_changed_.WaitWithDeadline(&mutex_, expiry);
      }
    }
    ExpireDue();
  }
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

int Batcher::num_waiting_workers() const {
  absl::MutexLock lock(&mutex_);
  return std::accumulate(num_waiting_workers_.begin(), num_waiting_workers_.end(), 0);
}

}  // namespace voxserve
