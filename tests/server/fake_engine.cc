#include "tests/server/fake_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "tests/support/named_outputs.h"

namespace voxserve {
FakeEngine::FakeEngine(Options options) : options_(options), pause_(options.pause) {
  if (options_.observer != nullptr) {
    options_.observer->OnModelState("broken", 1, false);
    options_.observer->OnModelState("fake", 1, false);
    options_.observer->OnModelState("fake", 2, false);
  }
  if (!options_.loading) FinishLoading();
  worker_ = std::thread([this] { Run(); });
}

FakeEngine::~FakeEngine() {
  FinishTune(WithReason(absl::UnavailableError("stopping"), error_reason::kDraining));
  {
    absl::MutexLock lock(&mutex_);
    loaded_ = true;
    stopping_ = true;
    pause_ = Pause::kNever;
  }
  worker_.join();
}

void FakeEngine::FinishLoading() {
  if (options_.observer != nullptr) {
    options_.observer->OnModelState("fake", 1, true);
    options_.observer->OnModelState("fake", 2, true);
    options_.observer->OnPlanLookup(false);
    options_.observer->OnPlanLookup(false);
    options_.observer->OnPlan("fake", 1, "cpu", "default");
    options_.observer->OnPlan("fake", 2, "cpu", "default");
  }
  absl::MutexLock lock(&mutex_);
  loaded_ = true;
}

void FakeEngine::Resume() {
  absl::MutexLock lock(&mutex_);
  pause_ = Pause::kNever;
}

void FakeEngine::EndOne() {
  absl::MutexLock lock(&mutex_);
  ++num_ends_;
}

bool FakeEngine::Await(const int64_t* counter, int64_t at_least) {
  absl::MutexLock lock(&mutex_);
  const auto reached = [&] { return *counter >= at_least; };
  return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(10));
}

bool FakeEngine::AwaitWaiting(int64_t count) { return Await(&num_waiting_, count); }
bool FakeEngine::AwaitStarted(int64_t count) { return Await(&num_started_, count); }
bool FakeEngine::AwaitCancelled(int64_t count) { return Await(&num_cancelled_, count); }
bool FakeEngine::AwaitCancelCalls(int64_t count) { return Await(&num_cancel_calls_, count); }

void FakeEngine::FailNext(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  next_failure_ = std::move(status);
}

int64_t FakeEngine::num_started() const {
  absl::MutexLock lock(&mutex_);
  return num_started_;
}

bool FakeEngine::IsIdle() const {
  absl::MutexLock lock(&mutex_);
  return queue_.empty() && idle_;
}

uint64_t FakeEngine::last_started_points() const {
  absl::MutexLock lock(&mutex_);
  return last_started_points_;
}

bool FakeEngine::last_started_was_pinned() const {
  absl::MutexLock lock(&mutex_);
  return last_started_was_pinned_;
}

bool FakeEngine::AwaitLastSweepGone() const {
  for (int i = 0; i < 1000; ++i) {
    {
      absl::MutexLock lock(&mutex_);
      if (last_sweep_.expired()) return true;
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

bool FakeEngine::AwaitTunes(int64_t count) { return Await(&num_tunes_, count); }
bool FakeEngine::AwaitTuneCancels(int64_t count) { return Await(&num_tune_cancels_, count); }

TuneTask FakeEngine::last_tune() const {
  absl::MutexLock lock(&mutex_);
  return last_tune_;
}

absl::Status FakeEngine::CheckModel(const std::string& model, int64_t version) const {
  if (draining_) return WithReason(absl::UnavailableError("draining"), error_reason::kDraining);
  if (model == "broken") return WithReason(absl::UnavailableError("broken: bad node"), error_reason::kModelFailed);
  if (model != "fake") {
    return WithReason(absl::NotFoundError(absl::StrCat("no model \"", model, "\"; there are: broken, fake")),
                      error_reason::kModelNotFound);
  }
  if (version < 0 || version > 2) {
    return WithReason(absl::NotFoundError(absl::StrCat("no version ", version, "; there are: 1, 2")),
                      error_reason::kVersionNotFound);
  }
  if (!loaded_) return WithReason(absl::UnavailableError("fake is loading"), error_reason::kModelLoading);
  return absl::OkStatus();
}

void FakeEngine::DescribeOutputs(ModelVersionInfo* info) const {
  info->has_labels = !options_.has_boxes;
  info->has_scores = !options_.has_boxes && options_.scores_per_point > 0;
  info->has_boxes = info->has_velocities = options_.has_boxes;
}

absl::Status FakeEngine::Check(const InferTask& task) const {
  if (absl::Status status = CheckModel(task.model, task.version); !status.ok()) return status;
  ModelVersionInfo outputs;
  outputs.name = task.model;
  DescribeOutputs(&outputs);
  if (absl::Status status = FindOutputs(outputs, task.return_scores, task.tensors).status(); !status.ok())
    return status;
  if (absl::Now() >= task.deadline) {
    return WithReason(absl::DeadlineExceededError("too late"), error_reason::kDeadlineExpired);
  }
  if (num_waiting_ >= options_.max_queue_requests) {
    return WithRetryDelay(WithReason(absl::ResourceExhaustedError("the queue is full"), error_reason::kQueueFull),
                          absl::Milliseconds(250));
  }
  return absl::OkStatus();
}

absl::StatusOr<HostBuffer> FakeEngine::AllocateCloud(int64_t bytes, BufferLife life) {
  return options_.pinned_pool == nullptr ? HostBuffer::Create(bytes) : options_.pinned_pool->Take(bytes, life);
}

uint64_t FakeEngine::Submit(InferTask task) {
  absl::Status refused;
  uint64_t ticket = 0;
  {
    absl::MutexLock lock(&mutex_);
    ticket = next_ticket_++;
    refused = Check(task);
    if (refused.ok()) {
      queue_.push_back({ticket, std::move(task)});
      num_waiting_ = static_cast<int64_t>(queue_.size());
      return ticket;
    }
  }
  task.done(refused);
  return ticket;
}

bool FakeEngine::Cancel(uint64_t ticket, DropReason reason) {
  InferTask cancelled;
  {
    absl::MutexLock lock(&mutex_);
    ++num_cancel_calls_;
    auto found = queue_.begin();
    while (found != queue_.end() && found->ticket != ticket) ++found;
    if (found == queue_.end()) return false;
    cancelled = std::move(found->task);
    queue_.erase(found);
    num_waiting_ = static_cast<int64_t>(queue_.size());
    ++num_cancelled_;
  }
  if (options_.observer != nullptr) options_.observer->OnDropped(cancelled.model, reason);
  cancelled.done(WithReason(absl::CancelledError("cancelled"), error_reason::kCancelled));
  return true;
}

uint64_t FakeEngine::Tune(TuneTask task) {
  absl::Status refused;
  uint64_t ticket = 0;
  {
    absl::MutexLock lock(&mutex_);
    ticket = next_ticket_++;
    refused = CheckModel(task.model, task.version);
    if (refused.ok() && tune_ticket_ != 0) {
      refused =
          WithReason(absl::FailedPreconditionError("a plan for fake is being searched"), error_reason::kAlreadyTuning);
    }
    if (refused.ok()) {
      tune_ticket_ = ticket;
      last_tune_ = std::move(task);
      ++num_tunes_;
      return ticket;
    }
  }
  task.done(refused);
  return ticket;
}

void FakeEngine::CancelTune(uint64_t ticket) {
  std::function<void(absl::StatusOr<TuneResult>)> done;
  {
    absl::MutexLock lock(&mutex_);
    ++num_tune_cancels_;
    if (ticket != tune_ticket_ || !options_.ends_cancelled_tunes) return;
    tune_ticket_ = 0;
    done = last_tune_.done;
  }
  done(WithReason(absl::CancelledError("cancelled"), error_reason::kCancelled));
}

void FakeEngine::FinishTune(absl::StatusOr<TuneResult> result) {
  std::function<void(absl::StatusOr<TuneResult>)> done;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(tune_ticket_, 0) == 0) return;
    done = last_tune_.done;
  }
  if (result.ok() && options_.observer != nullptr) options_.observer->OnPlan("fake", 2, "cpu", "tuned");
  done(std::move(result));
}

bool FakeEngine::AwaitModelCalls(int64_t count) { return Await(&num_model_calls_, count); }

FakeEngine::ModelCall FakeEngine::last_model_call() const {
  absl::MutexLock lock(&mutex_);
  return last_model_call_;
}

void FakeEngine::Load(LoadTask task) {
  Begin({.loads = true, .model = std::move(task.model), .version = task.version, .done = std::move(task.done)});
}

void FakeEngine::Unload(UnloadTask task) {
  Begin({.loads = false, .model = std::move(task.model), .version = task.version, .done = std::move(task.done)});
}

void FakeEngine::Begin(ModelCall call) {
  {
    absl::MutexLock lock(&mutex_);
    if (!draining_) {
      last_model_call_ = std::move(call);
      ++num_model_calls_;
      return;
    }
  }
  call.done(WithReason(absl::CancelledError("draining"), error_reason::kDraining));
}

void FakeEngine::WaitUntilLoaded() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&loaded_));
}

bool FakeEngine::loaded() const {
  absl::MutexLock lock(&mutex_);
  return loaded_;
}

std::vector<ModelVersionInfo> FakeEngine::ListModels() const {
  const ModelState state = loaded() ? ModelState::kReady : ModelState::kLoading;
  std::vector<ModelVersionInfo> models;
  models.push_back({.name = "broken", .version = 1, .state = ModelState::kFailed, .problems = {"bad <node>"}});
  for (const int64_t version : {1, 2}) {
    models.push_back({.name = "fake",
                      .version = version,
                      .state = state,
                      .problems = {},
                      .description = "labels by index",
                      .classes = {{.id = 0, .name = "car", .color_rgb = 0xFF0000}},
                      .axes = {"x", "y", "z"},
                      .features = {{.name = "x", .unit = "m"}, {.name = "intensity", .unit = "1"}},
                      .max_points = 100'000,
                      .voxel_size = {0.05f, 0.05f, 0.05f},
                      .num_parameters = 42,
                      .priority_levels = 2,
                      .device = "cpu",
                      .digest = "abc",
                      .plan_source = "default"});
    DescribeOutputs(&models.back());
  }
  return models;
}

absl::StatusOr<ModelVersionInfo> FakeEngine::GetModel(std::string_view name, int64_t version) const {
  for (const ModelVersionInfo& info : ListModels()) {
    const int64_t wanted = version == 0 && name == "fake" ? 2 : version;
    if (info.name == name && info.version == wanted) return info;
  }
  return WithReason(absl::NotFoundError("there are: broken/1, fake/1, fake/2"), error_reason::kModelNotFound);
}

void FakeEngine::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  const auto is_done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queue_.empty() && idle_; };
  mutex_.Await(absl::Condition(&is_done));
}

void FakeEngine::RefuseQueued() {
  std::deque<Waiting> refused;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    refused.swap(queue_);
    num_waiting_ = 0;
  }
  for (Waiting& waiting : refused) {
    waiting.task.done(WithReason(absl::UnavailableError("draining"), error_reason::kDraining));
  }
}

void FakeEngine::Run() {
  while (true) {
    InferTask task;
    absl::StatusOr<InferResult> result = InferResult();
    {
      absl::MutexLock lock(&mutex_);
      idle_ = true;
      const auto may_start = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || (!queue_.empty() && pause_ != Pause::kBeforeStart);
      };
      mutex_.Await(absl::Condition(&may_start));
      if (queue_.empty()) return;
      idle_ = false;
      task = std::move(queue_.front().task);
      queue_.pop_front();
      num_waiting_ = static_cast<int64_t>(queue_.size());
      ++num_started_;
      last_started_points_ = task.cloud.num_points();
      last_started_was_pinned_ = task.cloud.is_pinned();
      if (!task.sweeps.empty()) last_sweep_ = task.sweeps[0].sweep;
      const auto may_end = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return pause_ != Pause::kAfterStart || num_ends_ > 0;
      };
      mutex_.Await(absl::Condition(&may_end));
      if (pause_ == Pause::kAfterStart) --num_ends_;
      if (next_failure_.ok()) {
        result = Answer(task);
      } else {
        result = std::exchange(next_failure_, absl::OkStatus());
      }
    }
    if (result.ok() && options_.observer != nullptr) {
      options_.observer->OnPoints(task.model, result->counts);
      options_.observer->OnStage(task.model, Stage::kFeatures, absl::Milliseconds(2));
      options_.observer->OnBatch(task.model, 1, result->counts.used, result->counts.voxels);
    }
    task.done(std::move(result));
  }
}

absl::StatusOr<InferResult> FakeEngine::Answer(const InferTask& task) const {
  const auto num_points = static_cast<int64_t>(task.cloud.num_points());
  InferResult result;
  result.model = task.model;
  result.version = task.version == 0 ? 2 : task.version;
  result.device = "cpu";
  result.num_classes = static_cast<int>(options_.scores_per_point);
  std::vector<Box> boxes;
  std::vector<uint8_t> labels;
  for (int64_t i = 0; i < num_points; ++i) {
    const auto class_id = static_cast<uint8_t>(
        options_.labels_are_bytes ? task.cloud.bytes()[static_cast<size_t>(i) * task.cloud.layout().point_step]
                                  : i % 3);
    boxes.push_back(
        {.class_id = class_id, .score = 0.5f, .x = static_cast<float>(i), .length = 4, .width = 2, .height = 1.5f});
    labels.push_back(class_id);
  }
  if (options_.has_boxes) result.class_names = {"car"};
  result.outputs = {options_.has_boxes ? BoxesOf(boxes) : LabelsOf(labels)};
  if (task.return_scores) {
    result.outputs.push_back(
        ScoresOf(std::vector<float>(num_points * options_.scores_per_point, 0.5f), options_.scores_per_point));
  }
  result.counts = {.used = num_points, .voxels = num_points};
  result.stages = {{Stage::kQueue, absl::Microseconds(5)}, {Stage::kFeatures, absl::Milliseconds(2)}};
  return result;
}

}  // namespace voxserve
