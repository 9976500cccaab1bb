#include "engine/serving/worker.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/fault.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/base/tell_done.h"
#include "engine/serving/admission/latency_fit.h"
#include "engine/serving/models/warm_up.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {
namespace {

// Returns the time from a task's arrival until its batch started. If the task is a frame of a client's stream, this
// includes the time for which the frame waited in the stream before it was queued (InferTask::arrived).
absl::Duration TimeInQueue(const QueuedTask& task, absl::Time started) {
  return started - std::min(task.task.arrived, task.enqueued);
}

// Returns the number of voxels of all samples together, or 0 if one of the samples failed.
int64_t NumVoxels(const BatchReport& output) {
  int64_t voxels = 0;
  for (const InferResult& sample : output.samples) {
    if (!sample.status.ok()) return 0;
    voxels += sample.counts.voxels;
  }
  return voxels;
}

// Returns the part of the batch's time that farthest point sampling took, 0 to 1.
double SampleShare(const std::vector<StageTime>& stages) {
  absl::Duration sampling, all;
  for (const StageTime& time : stages) {
    all += time.duration;
    if (time.stage == Stage::kSample) sampling += time.duration;
  }
  return all > absl::ZeroDuration() ? absl::FDivDuration(sampling, all) : 0;
}

// Adds the parts of an answer that the executor does not know.
void Complete(const QueuedTask& task, const std::vector<StageTime>& stages, absl::Duration queued,
              const std::string& device, InferResult& result) {
  const ServedModel& model = *task.model;
  result.model = model.info.name;
  result.version = model.info.version;
  result.device = device;
  result.ignore_label = model.limits.ignore_label;
  result.num_classes = model.program().num_classes;
  if (model.info.has_boxes) {
    for (const ClassInfo& named : model.info.classes) result.class_names.push_back(named.name);
  }
  result.warnings = task.task.warnings;
  result.stages = {{Stage::kQueue, queued}};
  result.stages.insert(result.stages.end(), stages.begin(), stages.end());
}

void InjectFaults(BatchReport& output) {
  if (FaultAt(FaultSite::kBatchError)) {
    output = BatchReport();
    output.status = WithReason(absl::InternalError("the launch of a kernel failed"), error_reason::kInternal);
  }
  if (FaultAt(FaultSite::kDeviceFailure)) {
    output = BatchReport();
    output.status = WithReason(absl::UnavailableError("the device is lost"), error_reason::kDeviceFailed);
  }
}

}  // namespace

Worker::Worker(Options options, ExecutionContext context)
    : options_(std::move(options)),
      context_(std::move(context)),
      executor_(Executor::Create(&context_)),
      thread_([this] { Loop(); }) {}

Worker::~Worker() { thread_.join(); }

void Worker::Loop() {
  if constexpr (kernels::kHasCuda) {
    if (context_.cuda != nullptr && !context_.cuda->MakeCurrent().ok()) {
      failed_ = WithReason(absl::UnavailableError(context_.device + " does not let itself be used"),
                           error_reason::kDeviceFailed);
    }
  }
  for (;;) {
    Batch batch = options_.batcher->Pop(options_.device);
    if (batch.tasks.empty()) return;
    options_.batcher->Finished(batch, Run(absl::MakeSpan(batch.tasks), SteadyNow()));
    ReleaseOldMemory();
    if (!failed_.ok() && !is_last_) {
      is_last_ = options_.num_working_workers->fetch_sub(1) == 1;
      if (options_.on_device_failed) options_.on_device_failed(failed_);
      if (!is_last_) return options_.batcher->RemoveWorker(options_.device);
    }
  }
}

absl::Status Worker::WarmUp(const ServedModel& model) {
  absl::MutexLock lock(&running_);
  if constexpr (kernels::kHasCuda) {
    if (context_.cuda != nullptr) RETURN_IF_ERROR(context_.cuda->MakeCurrent());
  }
  const std::shared_ptr<const PlanTable> plans = model.plans->Get(options_.device);
  const ServedModel::OnDevice& on_device = model.on_device[options_.device];
  absl::Status status = voxserve::WarmUp(on_device.program, {.plans = plans.get(), .captures = options_.captures},
                                         model.limits, model.info.max_points, *options_.arbiter, *executor_,
                                         *on_device.memory, on_device.latency.get());
  if (context_.cuda != nullptr) executor_->ReleaseHostMemory();  // the largest cloud's outputs took much of it
  options_.arbiter->TryOnce({}, [this](const RunOptions&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_) {
    SettleMemory();
    return BatchReport();
  });
  return status;
}

bool Worker::ReleaseIdleMemory(absl::Duration idle_time) {
  if (!running_.TryLock()) return false;
  const absl::Time now = SteadyNow();
  const bool is_idle = now - last_run_ >= idle_time;
  try {
    if (is_idle && last_run_ > released_) ReleaseHostMemory(now);
  } catch (...) {
    running_.Unlock();
    throw;
  }
  running_.Unlock();
  return is_idle;
}

void Worker::ReleaseOldMemory() {
  absl::MutexLock lock(&running_);
  const absl::Time now = SteadyNow();
  if (now - looked_ < options_.memory_age) return;
  looked_ = now;
  const int64_t needed = std::exchange(needed_bytes_, 0);
  // Memory that is in use is kept, since new pages cost a batch time. Batches on a GPU normally need no host memory.
  const bool is_in_use = context_.cuda == nullptr && executor_->allocated_bytes() < 2 * needed;
  if (!is_in_use) ReleaseHostMemory(now);
}

void Worker::ReleaseHostMemory(absl::Time now) {
  executor_->ReleaseHostMemory();
  released_ = now;
  if (context_.cuda == nullptr) SettleMemory();  // on a GPU, SettleMemory is called only under the arbiter
}

void Worker::SettleMemory() {
  const auto count = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_) {
    const int64_t bytes = executor_->allocated_bytes();
    options_.batch_bytes->fetch_add(bytes - std::exchange(batch_bytes_, bytes));
  };
  count();
  if constexpr (kernels::kHasCuda) {
    if (context_.cuda == nullptr) return;
    // A batch that ran alone may have taken memory that the other contexts need.
    if (batch_bytes_ <= options_.max_batch_bytes(options_.device)) return;
    context_.cuda->ReleaseArenas();
    count();
  }
}

BatchReport Worker::RunWithinMemory(const ServedModel& model, BatchTasks tasks, const WorkSize& load) {
  absl::MutexLock lock(&running_);
  const std::shared_ptr<const PlanTable> plans = model.plans->Get(options_.device);
  const ServedModel::OnDevice& on_device = model.on_device[options_.device];
  const LatencyFit& latency = *on_device.latency;
  const bool is_known =
      latency.Knows(latency.EstimateSize(load.network_points(), load.requests)) && on_device.selection->Knows(load);
  const absl::Duration predicted =
      is_known ? LatencyModel::Expected(model, options_.device, load) : absl::ZeroDuration();
  const auto run = [&](const RunOptions& options) ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_) {
    const BatchWatchdog::Watch watch(options_.watchdog, {.model = &model.info,
                                                         .device = context_.device,
                                                         .requests = load.requests,
                                                         .points = load.points,
                                                         .predicted = predicted});
    DelayAt(FaultSite::kSlowBatch);
    const absl::Time began = SteadyNow();
    BatchReport output = executor_->Run(on_device.program, tasks, model.limits, options);
    last_run_ = SteadyNow();
    if (options_.short_sizes != nullptr && tasks.size() == 1 && output.status.ok()) {
      options_.short_sizes->Observe(model.info.name, load.points, last_run_ - began, last_run_);
    }
    needed_bytes_ = std::max(needed_bytes_, output.bytes.total());
    if (options_.is_for_long) ReleaseHostMemory(last_run_);
    SettleMemory();
    return output;
  };
  DeviceArbiter& arbiter = *options_.arbiter;
  if (tasks.size() == 1) return arbiter.RunWithRetry({.plans = plans.get(), .captures = options_.captures}, run);
  const BatchBytes expected =
      on_device.memory->Expected(load.points, latency.EstimateVoxels(load.points), load.requests);
  return arbiter.TryOnce({.plans = plans.get(), .captures = options_.captures, .expected = expected}, run);
}

BatchReport Worker::RunOrRefuse(const ServedModel& model, BatchTasks tasks, const WorkSize& load) {
  BatchReport output;
  if (failed_.ok()) {
    output = RunWithinMemory(model, tasks, load);
    InjectFaults(output);
    if (ReasonOf(output.status) == error_reason::kDeviceFailed) failed_ = output.status;
  } else {
    output.status = failed_;
  }
  return output;
}

Batcher::Outcome Worker::Run(absl::Span<QueuedTask> tasks, absl::Time started) {
  const ServedModel& model = *tasks.front().model;
  WorkSize load;
  BatchReport output;
  try {
    std::vector<const InferTask*> batch;
    for (const QueuedTask& task : tasks) {
      load += WorkSize::Of(task.task);
      batch.push_back(&task.task);
    }
    output = RunOrRefuse(model, batch, load);
  } catch (const std::bad_alloc&) {
    output = BatchReport();
    output.status = OutOfMemoryError();
  }
  if (!output.status.ok() && failed_.ok() && tasks.size() > 1) {
    const size_t half = tasks.size() / 2;
    const Batcher::Outcome first = Run(tasks.first(half), started);
    const Batcher::Outcome second = Run(tasks.subspan(half), started);
    const bool is_other_memory = context_.cuda != nullptr && output.host_is_full;
    const bool had_room = !IsOutOfMemory(output.status) || is_other_memory;
    Batcher::Outcome both{.in_parts = true, .had_room = had_room && first.had_room && second.had_room};
    if (first.num_voxels && second.num_voxels) both.num_voxels = *first.num_voxels + *second.num_voxels;
    return both;
  }
  try {
    Report(tasks, output, started);
  } catch (const std::bad_alloc&) {  // the metrics then lack this batch
  }
  const int64_t voxels = NumVoxels(output);
  for (size_t i = 0; i < tasks.size(); ++i) {
    QueuedTask& task = tasks[i];
    absl::Status status = output.status.ok() ? output.samples[i].status : output.status;
    try {
      if (status.ok()) {
        Complete(task, output.stages, TimeInQueue(task, started), context_.device, output.samples[i]);
      }
    } catch (const std::bad_alloc&) {
      status = OutOfMemoryError();
    }
    if (status.ok()) {
      TellDone(task.task.done, std::move(output.samples[i]));
    } else {
      TellDone(task.task.done, std::move(status));
    }
  }
  if (voxels == 0) return {};
  // The memory model learns only from batches that take as much memory as usual ones. Kernel maps that were made on the
  // CPU take less, since their sizes are exact. A sampled cloud takes less, since the network sees fewer of its points.
  try {
    if (!output.geometry_on_cpu && load.selections == 0 && IsTypical(model.info, tasks.front().task)) {
      model.on_device[options_.device].memory->Observe(load.points, std::max(voxels, output.voxel_capacity),
                                                       output.bytes, load.requests);
    }
  } catch (const std::bad_alloc&) {  // then the model of memory does not learn from this batch
  }
  return {.num_voxels = voxels, .sample_share = SampleShare(output.stages)};
}

void Worker::Report(absl::Span<const QueuedTask> tasks, const BatchReport& output, absl::Time started) {
  EngineObserver* observer = options_.observer;
  if (observer == nullptr) return;
  const std::string& model = tasks.front().model->info.name;
  for (const QueuedTask& task : tasks) {
    observer->OnStage(model, Stage::kQueue, TimeInQueue(task, started));
  }
  absl::Duration busy;
  for (const StageTime& time : output.stages) {
    observer->OnStage(model, time.stage, time.duration);
    busy += time.duration;
  }
  observer->OnDeviceBusy(context_.device, absl::StrCat(options_.stream), busy);
  int64_t points = 0, voxels = 0;
  for (const InferResult& sample : output.samples) {
    const PointCounts& counts = sample.counts;
    points += counts.used + counts.invalid + counts.out_of_range + counts.dropped + counts.unsampled;
    voxels += counts.voxels;
    if (!sample.status.ok()) continue;
    observer->OnPoints(model, counts);
    if (tasks.front().model->info.has_boxes) observer->OnNotFiniteBoxes(model, sample.num_not_finite_boxes);
  }
  observer->OnBatch(model, static_cast<int64_t>(tasks.size()), points, voxels);
  for (int64_t i = 0; i < output.grid_fallbacks; ++i) observer->OnGridFallback();
  if (output.ran_again) observer->OnRerun();
  if (output.is_replay) observer->OnReplay();
  if (output.geometry_on_cpu) observer->OnGeometryFallback();
  observer->OnDeviceMemory(context_.device, "batches", *options_.batch_bytes);
  if constexpr (kernels::kHasCuda) {
    if (context_.cuda != nullptr && context_.cuda->copies != nullptr) {
      observer->OnDeviceMemory(context_.device, "sweeps", context_.cuda->copies->allocated_bytes());
    }
  }
}

}  // namespace voxserve
