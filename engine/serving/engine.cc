#include "engine/serving/engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/executor/point_reader.h"
#include "engine/runtime/available_memory.h"
#include "engine/runtime/devices.h"
#include "engine/runtime/pinned_memory.h"
#include "engine/runtime/pinned_pool.h"
#include "engine/serving/admission/batcher.h"
#include "engine/serving/batch_watchdog.h"
#include "engine/serving/feature_ranges.h"
#include "engine/serving/memory_trimmer.h"
#include "engine/serving/models/model_manager.h"
#include "engine/serving/models/model_repository.h"
#include "engine/serving/models/model_table.h"
#include "engine/serving/models/plan_tuner.h"
#include "engine/serving/short_sizes.h"
#include "engine/serving/worker.h"
#include "engine/tuner/plan_store.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {
namespace {

// Returns the number of workers by device.
std::vector<int> NumWorkers(const std::vector<Device>& devices, int streams_per_device) {
  std::vector<int> num_workers;
  for (const Device& device : devices) num_workers.push_back(device.is_cuda() ? streams_per_device : 1);
  return num_workers;
}

// On a CPU, requests that may take longer than this have a worker of their own, so that the short ones of others run
// beside them and need not wait for their ends. No batch of several requests is longer either.
constexpr absl::Duration kLongRequest = absl::Milliseconds(500);
// How often a request runs that is predicted to take longer than Options::max_request_time.
constexpr absl::Duration kTooLongPeriod = absl::Minutes(1);

// Adds up the waiting tasks of the two batchers, by model. Thread-safe.
class QueueDepths {
 public:
  explicit QueueDepths(EngineObserver* observer) : observer_(observer) {}

  void Set(const std::string& model, size_t batcher, int64_t tasks) {
    if (observer_ == nullptr) return;
    absl::MutexLock lock(&mutex_);
    std::array<int64_t, 2>& depths = depths_[model];
    depths[batcher] = tasks;
    observer_->OnQueueDepth(model, depths[0] + depths[1]);
  }

 private:
  EngineObserver* const observer_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::array<int64_t, 2>> depths_ ABSL_GUARDED_BY(mutex_);
};

// Page-locked memory for clouds may take 1 / kPinnedShare of the process's memory limit, but at most kMaxPinnedBytes.
constexpr int64_t kPinnedShare = 16;
constexpr int64_t kMaxPinnedBytes = int64_t{1} << 30;

// Returns null on a CPU, which reads clouds from any memory.
std::shared_ptr<PinnedPool> MakePinnedPool([[maybe_unused]] const std::vector<Device>& devices,
                                           [[maybe_unused]] MemoryBudget* budget) {
  if constexpr (kernels::kHasCuda) {
    if (!devices.front().is_cuda()) return nullptr;
    PinnedPool::Options options{
        .source = PinnedSource(devices.front().pool->device()), .max_bytes = kMaxPinnedBytes, .budget = budget};
    if (budget != nullptr && budget->limit_bytes() > 0) {
      options.max_bytes = std::min(options.max_bytes, budget->limit_bytes() / kPinnedShare);
    }
    return PinnedPool::Create(std::move(options));
  }
  return nullptr;
}

class EngineImpl final : public Engine {
 public:
  // device_memory: the host memory that the devices' libraries took.
  EngineImpl(Options options, std::vector<Device> devices, MemoryBudget::Reservation device_memory)
      : options_(std::move(options)),
        device_memory_(std::move(device_memory)),
        devices_(std::move(devices)),
        pinned_pool_(MakePinnedPool(devices_, options_.memory_budget)),
        pool_(options_.ResolvedThreads()),
        batch_bytes_(devices_.size()),
        plan_store_(options_.plan_dir),
        queue_depths_(options_.observer),
        batcher_(BatcherOptions(0)) {
    if (!devices_.front().is_cuda()) long_batcher_ = std::make_unique<Batcher>(BatcherOptions(1));
    for (size_t i = 0; i < devices_.size(); ++i) arbiters_.push_back(std::make_unique<DeviceArbiter>());
    tuner_ = std::make_unique<PlanTuner>(PlanTuner::Options{.devices = &devices_,
                                                            .arbiters = &arbiters_,
                                                            .pool = &pool_,
                                                            .store = &plan_store_,
                                                            .observer = options_.observer,
                                                            .memory = options_.memory_budget});
    if (options_.stuck_batch_time == absl::InfiniteDuration()) return;
    watchdog_ = std::make_unique<BatchWatchdog>(BatchWatchdog::Options{.factor = options_.stuck_batch_factor,
                                                                       .least_time = options_.stuck_batch_time,
                                                                       .observer = options_.observer,
                                                                       .on_stuck = options_.on_batch_stuck});
  }

  absl::Status StartWorkers() {
    std::vector<std::pair<size_t, ExecutionContext>> contexts;  // each with the index of its device
    const std::vector<int> num_workers = NumWorkers(devices_, options_.streams_per_device);
    for (size_t device = 0; device < devices_.size(); ++device) {
      for (int i = 0; i < num_workers[device]; ++i) {
        ASSIGN_OR_RETURN(ExecutionContext context, MakeContext(devices_[device], &pool_));
        contexts.emplace_back(device, std::move(context));
      }
    }
    const size_t num_short = contexts.size();
    if (long_batcher_ != nullptr) {
      ASSIGN_OR_RETURN(ExecutionContext context, MakeContext(devices_.front(), &pool_));
      contexts.emplace_back(0, std::move(context));
    }
    for (auto& [device, context] : contexts) arbiters_[device]->Add(context.cuda.get());
    num_working_workers_ = static_cast<int>(contexts.size());
    std::vector<int> num_streams(devices_.size());
    for (auto& [device, context] : contexts) {
      const bool is_for_long = workers_.size() >= num_short;
      workers_.push_back(
          std::make_unique<Worker>(Worker::Options{.stream = num_streams[device]++,
                                                   .device = device,
                                                   .batcher = is_for_long ? long_batcher_.get() : &batcher_,
                                                   .is_for_long = is_for_long,
                                                   .observer = options_.observer,
                                                   .watchdog = watchdog_.get(),
                                                   .num_working_workers = &num_working_workers_,
                                                   .batch_bytes = &batch_bytes_[device],
                                                   .max_batch_bytes = [this](size_t of) { return MaxBatchBytes(of); },
                                                   .arbiter = arbiters_[device].get(),
                                                   .short_sizes = &short_sizes_,
                                                   .captures = options_.captured_batches,
                                                   .on_device_failed = options_.on_device_failed},
                                   std::move(context)));
    }
    memory_trimmer_ = std::make_unique<MemoryTrimmer>(&devices_, &workers_, pinned_pool_.get(), options_.observer);
    return absl::OkStatus();
  }

  ~EngineImpl() override { Drain(); }

  void StartLoading(RepositoryListing listing) {
    manager_ = std::make_unique<ModelManager>(
        ModelManager::Options{
            .repository = options_.model_repository,
            .poll_interval = options_.model_poll_interval,
            .models = &models_,
            .builder = {.devices = &devices_,
                        .arbiters = &arbiters_,
                        .pool = &pool_,
                        .plan_store = &plan_store_,
                        .observer = options_.observer,
                        .max_grid_bytes = options_.max_grid_bytes,
                        .engine_version = options_.engine_version,
                        .is_deterministic = options_.deterministic,
                        .warm_up_workers = [this](size_t device,
                                                  const ServedModel& model) { return WarmUpWorkers(device, model); }},
            .memory_budget = options_.memory_budget,
            .on_ready = [this](const ModelVersionInfo& model, bool has_plans) { MaybeStartTuning(model, has_plans); },
            .on_retired = [this](const ModelHandle& model) { tuner_->CancelAllOf(model); }},
        std::move(listing));
  }

  absl::StatusOr<HostBuffer> AllocateCloud(int64_t bytes, BufferLife life) override {
    return pinned_pool_ == nullptr ? HostBuffer::Create(bytes) : pinned_pool_->Take(bytes, life);
  }

  uint64_t Submit(InferTask task) override {
    QueuedTask queued{.ticket = next_ticket_.fetch_add(1), .task = std::move(task)};
    const uint64_t ticket = queued.ticket;
    if (absl::Status status = Admit(queued); !status.ok()) queued.task.done(std::move(status));
    return ticket;
  }

  bool Cancel(uint64_t ticket, DropReason reason) override {
    return batcher_.Cancel(ticket, reason) || (long_batcher_ != nullptr && long_batcher_->Cancel(ticket, reason));
  }

  uint64_t Tune(TuneTask task) override {
    const uint64_t ticket = next_ticket_.fetch_add(1);
    if (absl::Status status = StartTuning(ticket, task); !status.ok() && task.done) task.done(std::move(status));
    return ticket;
  }

  void CancelTune(uint64_t ticket) override { tuner_->Cancel(ticket); }

  void Load(LoadTask task) override { manager_->Load(std::move(task)); }
  void Unload(UnloadTask task) override { manager_->Unload(std::move(task)); }
  void Poll() override { manager_->PollSoon(); }

  void WaitUntilLoaded() override { manager_->WaitUntilLoaded(); }
  bool loaded() const override { return manager_->loaded(); }

  std::vector<ModelVersionInfo> ListModels() const override { return models_.List(); }

  absl::StatusOr<ModelVersionInfo> GetModel(std::string_view name, int64_t version) const override {
    return models_.Describe(name, version);
  }

  void Drain() override {
    tuner_->Stop();
    for (Batcher* batcher : Batchers()) batcher->Stop();
    for (Batcher* batcher : Batchers()) batcher->WaitUntilIdle();
    if (manager_ != nullptr) manager_->Stop();  // null if the workers did not start
  }

  void StopLoading() override { manager_->RequestStop(); }

  void RefuseQueued() override {
    for (Batcher* batcher : Batchers()) batcher->StopAndRefuse();
  }

  std::string devices() const override { return JoinIds(devices_); }

 private:
  // index: of the batcher, for queue_depths_.
  Batcher::Options BatcherOptions(size_t index) {
    return {.max_queue_requests = options_.max_queue_requests,
            .max_queue_bytes = options_.max_queue_bytes,
            .num_workers = NumWorkers(devices_, options_.streams_per_device),
            .max_batch_bytes = [this](size_t device) { return MaxBatchBytes(device); },
            .max_batch_time = kLongRequest,
            .observer = options_.observer,
            .on_queue_depth = [this, index](const std::string& model,
                                            int64_t tasks) { queue_depths_.Set(model, index, tasks); }};
  }

  std::vector<Batcher*> Batchers() {
    std::vector<Batcher*> batchers = {&batcher_};
    if (long_batcher_ != nullptr) batchers.push_back(long_batcher_.get());
    return batchers;
  }

  // Returns the batcher for the task by its predicted time, or why it takes too long.
  absl::StatusOr<Batcher*> BatcherFor(const QueuedTask& queued) {
    const ServedModel& model = *queued.model;
    const WorkSize load = WorkSize::Of(queued.task);
    absl::Duration predicted = absl::InfiniteDuration();  // on the fastest device
    for (size_t i = 0; i < devices_.size(); ++i)
      predicted = std::min(predicted, LatencyModel::Expected(model, i, load));
    const auto is_short = [&] {
      return short_sizes_.IsShown(model.info.name, load.points, /*is_predicted=*/predicted <= kLongRequest,
                                  SteadyNow());
    };
    if (predicted > options_.max_request_time && !is_short() && !MayRunTooLong()) {
      return WithReason(
          absl::InvalidArgumentError(absl::StrCat(
              "the request's ", queued.task.num_points(), " points are predicted to take ",
              absl::FormatDuration(absl::Trunc(predicted, absl::Milliseconds(1))), " of computing; the server allows ",
              absl::FormatDuration(options_.max_request_time), " (--max_request_time). Send fewer points")),
          error_reason::kTooManyPoints);
    }
    return long_batcher_ == nullptr || is_short() ? &batcher_ : long_batcher_.get();
  }

  bool MayRunTooLong() {
    const absl::Time now = SteadyNow();
    absl::MutexLock lock(&too_long_mutex_);
    if (now < next_too_long_) return false;
    next_too_long_ = now + kTooLongPeriod;
    return true;
  }

  // Queues the task, or returns why it is refused.
  absl::Status Admit(QueuedTask& queued) {
    const InferTask& task = queued.task;
    ASSIGN_OR_RETURN(queued.model, models_.Find(task.model, task.version));
    const ServedModel& model = *queued.model;
    if (task.num_points() > model.info.max_points) {
      const std::string what =
          task.sweeps.empty() ? "the cloud has " : absl::StrCat("the ", task.sweeps.size(), " sweeps have ");
      return WithReason(
          absl::InvalidArgumentError(absl::StrCat(what, task.num_points(), " points; the limit of model \"", task.model,
                                                  "\" is ", model.info.max_points)),
          error_reason::kTooManyPoints);
    }
    RETURN_IF_ERROR(CheckInput(model.program().voxelize, task));
    const PointCloud& newest = task.sweeps.empty() ? task.cloud : task.sweeps.front().sweep->cloud;
    queued.task.warnings = FindFeatureWarnings(model.program().voxelize, newest);
    ASSIGN_OR_RETURN(queued.task.tensor_set, FindOutputs(model.info, task.return_scores, task.tensors));
    queued.task.tensors = {};
    RETURN_IF_ERROR(CheckAnswerSize(model.info, task, options_.max_answer_bytes));
    InferTask scan;  // shares the clouds' bytes
    if (tuner_->is_collecting()) scan = {.cloud = task.cloud, .sweeps = task.sweeps, .age_feature = task.age_feature};
    const ModelHandle handle = queued.model;
    ASSIGN_OR_RETURN(Batcher * batcher, BatcherFor(queued));
    RETURN_IF_ERROR(batcher->Push(queued));
    tuner_->Offer(*handle, scan);
    return absl::OkStatus();
  }

  absl::Status WarmUpWorkers(size_t device, const ServedModel& model) {
    absl::Status status;
    for (const std::unique_ptr<Worker>& worker : workers_) {
      if (worker->device() == device && !worker->is_for_long()) status.Update(worker->WarmUp(model));
    }
    return status;
  }

  // Returns an equal share, for each context that runs batches side by side, of the device memory that weights, sweeps
  // and searches leave. On the CPU returns the host memory that all uses but scratch leave, since a batch may replace
  // the scratch of earlier ones.
  int64_t MaxBatchBytes(size_t device) const {
    const DevicePool* pool = devices_[device].pool.get();
    if (pool == nullptr) {
      const MemoryBudget* budget = options_.memory_budget;
      if (budget == nullptr || budget->limit_bytes() == 0) return MemoryModel::kNoLimit;
      const int64_t others = budget->held() - budget->held(MemoryBudget::Use::kScratch);
      return std::max<int64_t>(0, budget->limit_bytes() - others);
    }
    const int64_t others = std::max<int64_t>(0, pool->used_bytes() - batch_bytes_[device]);
    return std::max<int64_t>(0, pool->limit_bytes() - others) / options_.streams_per_device;
  }

  absl::Status StartTuning(uint64_t ticket, TuneTask& task) {
    if (options_.deterministic) {
      return absl::FailedPreconditionError("a server that is started with --deterministic runs by the default plan");
    }
    if (task.num_scans < 1 || task.num_scans > kMaxTuneScans) {
      return absl::InvalidArgumentError(
          absl::StrCat("num_scans is ", task.num_scans, "; it must be 1 to ", kMaxTuneScans));
    }
    if (task.max_wait < absl::ZeroDuration()) {
      return absl::InvalidArgumentError(absl::StrCat("max_wait is ", absl::FormatDuration(task.max_wait)));
    }
    ASSIGN_OR_RETURN(ModelHandle model, models_.Find(task.model, task.version));
    const std::filesystem::path folder = FolderOf(model->info.name, model->info.version);
    return tuner_->Start(ticket, std::move(model), folder, task);
  }

  std::filesystem::path FolderOf(const std::string& name, int64_t version) const {
    return ModelFolderOf(options_.model_repository, name) / std::to_string(version);
  }

  void MaybeStartTuning(const ModelVersionInfo& model, bool has_plans) {
    if (!options_.tune_on_load || has_plans) return;
    Tune({.model = model.name, .version = model.version, .max_wait = absl::InfiniteDuration()});
  }

  const Options options_;
  const MemoryBudget::Reservation device_memory_;
  // Declared before their users, so they are destroyed after them: models and workers hold memory of the devices.
  const std::vector<Device> devices_;
  const std::shared_ptr<PinnedPool> pinned_pool_;  // for clouds that GPUs copy; null on a CPU
  kernels::ThreadPool pool_;
  std::vector<std::atomic<int64_t>> batch_bytes_;         // by device
  std::vector<std::unique_ptr<DeviceArbiter>> arbiters_;  // by device
  std::atomic<int> num_working_workers_{0};
  PlanStore plan_store_;
  ModelTable models_;
  // Declared before its users, so it is destroyed after them.
  std::unique_ptr<ModelManager> manager_;
  std::unique_ptr<PlanTuner> tuner_;
  QueueDepths queue_depths_;
  ShortSizes short_sizes_{kLongRequest};
  Batcher batcher_;
  std::unique_ptr<Batcher> long_batcher_;  // for requests longer than kLongRequest; null where GPUs serve
  absl::Mutex too_long_mutex_;
  absl::Time next_too_long_ ABSL_GUARDED_BY(too_long_mutex_) = SteadyNow() + kTooLongPeriod;
  std::unique_ptr<BatchWatchdog> watchdog_;  // null: batches are not watched
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<MemoryTrimmer> memory_trimmer_;
  std::atomic<uint64_t> next_ticket_{1};
};

}  // namespace

absl::Status Engine::Options::Validate() const {
  if (model_repository.empty()) return absl::InvalidArgumentError("model_repository is not set");
  if (num_threads < 0) return absl::InvalidArgumentError(absl::StrCat("num_threads is ", num_threads));
  if (max_queue_requests < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_queue_requests is ", max_queue_requests, "; it must be 1 or more"));
  }
  if (max_queue_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_queue_bytes is ", max_queue_bytes, "; it must be 1 or more"));
  }
  if (max_answer_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("max_answer_bytes is ", max_answer_bytes));
  if (max_grid_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("max_grid_bytes is ", max_grid_bytes));
  if (max_request_time <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("max_request_time is ", absl::FormatDuration(max_request_time)));
  }
  if (streams_per_device < 1 || streams_per_device > kMaxStreamsPerDevice) {
    return absl::InvalidArgumentError(
        absl::StrCat("streams_per_device is ", streams_per_device, "; it must be 1 to ", kMaxStreamsPerDevice));
  }
  if (device_memory_limit < 0) {
    return absl::InvalidArgumentError(absl::StrCat("device_memory_limit is ", device_memory_limit));
  }
  if (model_poll_interval < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_poll_interval is ", absl::FormatDuration(model_poll_interval)));
  }
  if (stuck_batch_time <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stuck_batch_time is ", absl::FormatDuration(stuck_batch_time), "; it must be more than 0"));
  }
  if (!(stuck_batch_factor >= 0)) {  // NaN too
    return absl::InvalidArgumentError(
        absl::StrCat("stuck_batch_factor is ", stuck_batch_factor, "; it must be 0 or more"));
  }
  return absl::OkStatus();
}

int Engine::Options::ResolvedThreads() const {
  return num_threads > 0 ? num_threads : kernels::ThreadPool::AvailableCpus();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Options options) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(RepositoryListing listing, ScanRepository(options.model_repository));
  const int64_t resident_before = ResidentBytes();
  ASSIGN_OR_RETURN(std::vector<Device> devices,
                   OpenDevices(options.devices, options.device_memory_limit, options.memory_budget));
  for (const Device& device : devices) {
    if (device.is_cuda()) {
      Log(LogLevel::kInfo, "GPU found",
          {{"device", device.id}, {"name", device.name}, {"memory_limit_bytes", device.pool->limit_bytes()}});
    }
  }
  // Counts the host memory that CUDA takes for itself, some hundred MiB.
  MemoryBudget::Reservation device_memory;
  if (options.memory_budget != nullptr && devices.front().is_cuda()) {
    const int64_t taken = std::max<int64_t>(0, ResidentBytes() - resident_before);
    ASSIGN_OR_RETURN(device_memory, options.memory_budget->Reserve(MemoryBudget::Use::kModels, taken));
  }
  auto engine = std::make_unique<EngineImpl>(std::move(options), std::move(devices), std::move(device_memory));
  RETURN_IF_ERROR(engine->StartWorkers());
  engine->StartLoading(std::move(listing));
  return engine;
}

}  // namespace voxserve
