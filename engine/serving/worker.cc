#include "engine/serving/worker.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

InferResult MakeResult(const QueuedTask& task, SampleOutput&& sample, const std::vector<StageTime>& stages,
                       absl::Duration queued, const std::string& device) {
  const ServedModel& model = *task.model;
  InferResult result{.model = model.info.name,
                     .version = model.info.version,
                     .device = device,
                     .labels = std::move(sample.labels),
                     .bytes_per_label = static_cast<int>(SizeOf(model.program().label_dtype)),
                     .ignore_label = model.limits.ignore_label,
                     .num_classes = model.program().num_classes,
                     .scores = std::move(sample.scores),
                     .counts = sample.counts};
  result.stages.push_back({"queue", queued});
  result.stages.insert(result.stages.end(), stages.begin(), stages.end());
  return result;
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
    Batch batch = options_.batcher->Pop();
    if (batch.tasks.empty()) return;
    Run(batch);
    options_.batcher->Finished(batch);
    if (!failed_.ok() && !is_last_) {
      is_last_ = options_.num_working_workers->fetch_sub(1) == 1;
      if (options_.on_device_failed) options_.on_device_failed(failed_);
      if (!is_last_) return;
    }
  }
}

BatchOutput Worker::RunWithinMemory(const ServedModel& model, const std::vector<SampleInput>& inputs) {
  const std::shared_ptr<const PlanTable> plans = model.plans->Get(options_.device);
  return options_.shared_memory->Run({.plans = plans.get()}, [&](const RunOptions& options) {
    return executor_->Run(model.programs[options_.device], inputs, model.limits, options);
  });
}

BatchOutput Worker::RunOrRefuse(const ServedModel& model, const std::vector<SampleInput>& inputs) {
  BatchOutput output;
  if (failed_.ok()) {
    output = RunWithinMemory(model, inputs);
    if (ReasonOf(output.status) == error_reason::kDeviceFailed) failed_ = output.status;
  } else {
    output.status = failed_;
  }
  return output;
}

void Worker::Run(Batch& batch) {
  const auto started = std::chrono::steady_clock::now();
  const ServedModel& model = *batch.tasks.front().model;
  std::vector<SampleInput> inputs;
  for (const QueuedTask& task : batch.tasks) {
    inputs.push_back({.cloud = &task.task.cloud, .return_scores = task.task.return_scores});
  }
  BatchOutput output = RunOrRefuse(model, inputs);
  Report(batch, output, started);
  for (size_t i = 0; i < batch.tasks.size(); ++i) {
    QueuedTask& task = batch.tasks[i];
    const absl::Status& status = output.status.ok() ? output.samples[i].status : output.status;
    if (!status.ok()) {
      task.task.done(status);
    } else {
      task.task.done(MakeResult(task, std::move(output.samples[i]), output.stages,
                                absl::FromChrono(started - task.enqueued), context_.device));
    }
  }
}

void Worker::Report(const Batch& batch, const BatchOutput& output, std::chrono::steady_clock::time_point started) {
  EngineObserver* observer = options_.observer;
  if (observer == nullptr) return;
  const std::string& model = batch.tasks.front().model->info.name;
  for (const QueuedTask& task : batch.tasks) {
    observer->OnStage(model, "queue", absl::FromChrono(started - task.enqueued));
  }
  absl::Duration busy;
  for (const StageTime& stage : output.stages) {
    observer->OnStage(model, stage.name, stage.duration);
    busy += stage.duration;
  }
  observer->OnDeviceBusy(context_.device, "compute", busy);
  int64_t points = 0, voxels = 0;
  for (const SampleOutput& sample : output.samples) {
    const PointCounts& counts = sample.counts;
    points += counts.used + counts.invalid + counts.out_of_range + counts.dropped;
    voxels += counts.voxels;
    if (sample.status.ok()) {
      observer->OnPoints(model, counts.used, counts.invalid, counts.out_of_range, counts.dropped);
    }
  }
  observer->OnBatch(model, static_cast<int64_t>(batch.tasks.size()), points, voxels);
  for (int64_t i = 0; i < output.grid_fallbacks; ++i) observer->OnGridFallback();
  if (output.geometry_on_cpu) observer->OnGeometryFallback();
  const int64_t change = executor_->allocated_bytes() - std::exchange(batch_bytes_, executor_->allocated_bytes());
  observer->OnDeviceMemory(context_.device, "batches", options_.batch_bytes->fetch_add(change) + change);
}

}  // namespace voxserve
