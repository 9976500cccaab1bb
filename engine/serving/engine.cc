#include "engine/serving/engine.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/graph/point_reader.h"
#include "engine/graph/problems.h"
#include "engine/serving/batcher.h"
#include "engine/serving/device_program.h"
#include "engine/serving/devices.h"
#include "engine/serving/model_repository.h"
#include "engine/serving/plan_tuner.h"
#include "engine/serving/served_models.h"
#include "engine/serving/warm_up.h"
#include "engine/serving/worker.h"
#include "engine/tuner/plan_file.h"
#include "engine/tuner/plan_store.h"
#include "kernels/thread_pool.h"

namespace voxserve {
namespace {

std::string Join(const std::vector<Device>& devices) {
  return absl::StrJoin(devices, ",", [](std::string* out, const Device& device) { out->append(device.id); });
}

absl::StatusOr<std::shared_ptr<ServedModel>> MakeServedModel(const std::string& name, int64_t version,
                                                             const LoadedModel& loaded,
                                                             const std::vector<Device>& devices,
                                                             const Engine::Options& options) {
  const Graph& graph = loaded.graph;
  const ModelConfig& config = loaded.config;
  auto model = std::make_shared<ServedModel>();
  for (const Device& device : devices) {
    ASSIGN_OR_RETURN(Program program, MakeProgram(graph, config, device));
    model->programs.push_back(std::move(program));
    model->plan_keys.push_back(MakePlanKey(graph, config, device, options.engine_version));
  }
  model->plans = std::make_unique<ModelPlans>(devices.size());
  model->limits = {.ignore_label = config.ignore_label,
                   .max_voxels = config.max_voxels,
                   .keep_nearest_voxels = config.voxel_overflow == ModelConfig::VoxelOverflow::kNearestFirst,
                   .max_grid_bytes = options.max_grid_bytes};
  ModelVersionInfo& info = model->info;
  info.name = name;
  info.version = version;
  info.state = ModelState::kReady;
  info.description = graph.description;
  for (size_t id = 0; id < config.classes.size(); ++id) {
    info.classes.push_back(
        {.id = static_cast<int>(id), .name = config.classes[id].name, .color_rgb = config.classes[id].color_rgb});
  }
  info.ignore_label = config.ignore_label;
  for (const InputFeature& feature : graph.voxelize_op().features) {
    info.features.push_back({.name = feature.name,
                             .unit = feature.unit,
                             .has_default = feature.default_value.has_value(),
                             .default_value = feature.default_value.value_or(0.0f)});
  }
  info.max_points = config.max_points;
  const auto& voxel_size = graph.voxelize_op().voxel_size;
  info.voxel_size.assign(voxel_size.begin(), voxel_size.begin() + graph.dimension);
  info.num_parameters = graph.num_parameters;
  info.device = Join(devices);
  info.digest = graph.digest;
  return model;
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(Options options, std::vector<Device> devices)
      : options_(std::move(options)),
        devices_(std::move(devices)),
        pool_(options_.ResolvedThreads()),
        batch_bytes_(devices_.size()),
        weight_bytes_(devices_.size()),
        plan_store_(options_.plan_dir),
        batcher_({.max_queue_requests = options_.max_queue_requests,
                  .max_queue_bytes = options_.max_queue_bytes,
                  .observer = options_.observer}) {
    for (size_t i = 0; i < devices_.size(); ++i) shared_memory_.push_back(std::make_unique<SharedMemory>());
    tuner_ = std::make_unique<PlanTuner>(PlanTuner::Options{.devices = &devices_,
                                                            .shared_memory = &shared_memory_,
                                                            .pool = &pool_,
                                                            .store = &plan_store_,
                                                            .observer = options_.observer});
  }

  absl::Status StartWorkers() {
    std::vector<std::pair<size_t, ExecutionContext>> contexts;  // with the index of their device
    for (size_t device = 0; device < devices_.size(); ++device) {
      const int count = devices_[device].is_cuda() ? options_.streams_per_device : 1;
      for (int i = 0; i < count; ++i) {
        ASSIGN_OR_RETURN(ExecutionContext context, MakeContext(devices_[device], &pool_));
        contexts.emplace_back(device, std::move(context));
      }
    }
    for (auto& [device, context] : contexts) shared_memory_[device]->Add(context.cuda.get());
    num_working_workers_ = static_cast<int>(contexts.size());
    for (auto& [device, context] : contexts) {
      workers_.push_back(std::make_unique<Worker>(Worker::Options{.device = device,
                                                                  .batcher = &batcher_,
                                                                  .observer = options_.observer,
                                                                  .num_working_workers = &num_working_workers_,
                                                                  .batch_bytes = &batch_bytes_[device],
                                                                  .shared_memory = shared_memory_[device].get(),
                                                                  .on_device_failed = options_.on_device_failed},
                                                  std::move(context)));
    }
    return absl::OkStatus();
  }

  ~EngineImpl() override {
    stop_loading_ = true;
    if (loader_.joinable()) loader_.join();
    Drain();
  }

  void StartLoading(RepositoryListing listing) {
    for (const std::string& warning : listing.warnings) {
      Log(LogLevel::kWarning, "model repository", {{"problem", warning}});
    }
    for (const ModelFolder& folder : listing.models) {
      for (const int64_t version : folder.versions) {
        models_.AddLoading(folder.name, version);
        ObserveState(folder.name, version, false);
      }
    }
    loader_ = std::thread([this, models = std::move(listing.models)] { Load(models); });
  }

  uint64_t Submit(InferTask task) override {
    QueuedTask queued{.ticket = next_ticket_.fetch_add(1), .task = std::move(task)};
    const uint64_t ticket = queued.ticket;
    if (absl::Status status = Admit(queued); !status.ok()) queued.task.done(std::move(status));
    return ticket;
  }

  bool Cancel(uint64_t ticket) override { return batcher_.Cancel(ticket); }

  uint64_t Tune(TuneTask task) override {
    const uint64_t ticket = next_ticket_.fetch_add(1);
    if (absl::Status status = StartTuning(ticket, task); !status.ok() && task.done) task.done(std::move(status));
    return ticket;
  }

  void CancelTune(uint64_t ticket) override { tuner_->Cancel(ticket); }

  void WaitUntilLoaded() override {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&loaded_));
  }

  bool loaded() const override {
    absl::MutexLock lock(&mutex_);
    return loaded_;
  }

  std::vector<ModelVersionInfo> ListModels() const override { return models_.List(); }

  absl::StatusOr<ModelVersionInfo> GetModel(std::string_view name, int64_t version) const override {
    return models_.Describe(name, version);
  }

  void Drain() override {
    tuner_->Stop();
    batcher_.Stop();
    batcher_.WaitUntilIdle();
  }

  std::string devices() const override { return Join(devices_); }

 private:
  // Takes the task over, or says why not.
  absl::Status Admit(QueuedTask& queued) {
    const InferTask& task = queued.task;
    ASSIGN_OR_RETURN(queued.model, models_.Find(task.model, task.version));
    const ServedModel& model = *queued.model;
    if (task.cloud.num_points() > static_cast<uint64_t>(model.info.max_points)) {
      return WithReason(absl::InvalidArgumentError(absl::StrCat("the cloud has ", task.cloud.num_points(),
                                                                " points; the limit of model \"", task.model, "\" is ",
                                                                model.info.max_points)),
                        error_reason::kTooManyPoints);
    }
    RETURN_IF_ERROR(CheckFields(model.program().voxelize, task.cloud));
    if (task.return_scores && !model.program().has_scores) {
      return WithReason(absl::InvalidArgumentError(absl::StrCat("model \"", task.model, "\" has no scores output")),
                        error_reason::kUnsupportedOutput);
    }
    if (task.deadline <= absl::Now()) {
      if (options_.observer != nullptr) options_.observer->OnDropped(task.model, "expired");
      return WithReason(absl::DeadlineExceededError("the deadline had passed when the request arrived"),
                        error_reason::kDeadlineExpired);
    }
    const PointCloud cloud = task.cloud;  // shares its bytes
    const ModelHandle handle = queued.model;
    RETURN_IF_ERROR(batcher_.Push(queued));
    tuner_->Offer(*handle, cloud);
    return absl::OkStatus();
  }

  absl::Status StartTuning(uint64_t ticket, TuneTask& task) {
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
    return std::filesystem::path(options_.model_repository) / name / std::to_string(version);
  }

  void Load(const std::vector<ModelFolder>& folders) {
    for (const ModelFolder& folder : folders) {
      for (const int64_t version : folder.versions) {
        if (!stop_loading_) LoadVersion(folder.name, version);
      }
    }
    absl::MutexLock lock(&mutex_);
    loaded_ = true;
  }

  // A version that does not load, for whatever reason, leaves those in service alone.
  void LoadVersion(const std::string& name, int64_t version) {
    try {
      LoadWithinMemory(name, version);
    } catch (const std::bad_alloc&) {
      Fail(name, version, {"it does not fit into memory"});
    }
  }

  void LoadWithinMemory(const std::string& name, int64_t version) {
    const absl::Time start = absl::Now();
    const absl::StatusOr<LoadedModel> loaded =
        LoadModelVersion(std::filesystem::path(options_.model_repository) / name, version);
    if (!loaded.ok()) return Fail(name, version, ProblemsOf(loaded.status()));
    absl::StatusOr<std::shared_ptr<ServedModel>> made = MakeServedModel(name, version, *loaded, devices_, options_);
    if (!made.ok()) return Fail(name, version, {std::string(made.status().message())});
    const std::shared_ptr<ServedModel> model = *std::move(made);
    const bool has_plans = FindPlans(*model);
    WarmUpGpus(*model);
    Log(LogLevel::kInfo, "model ready",
        {{"model", name},
         {"version", version},
         {"parameters", model->info.num_parameters},
         {"weight_bytes", model->program().weight_bytes},
         {"plan", model->plans->source(0)},
         {"load_ms", absl::ToInt64Milliseconds(absl::Now() - start)}});
    for (size_t i = 0; i < devices_.size(); ++i) {
      weight_bytes_[i] += model->programs[i].weight_bytes;
      if (options_.observer != nullptr) {
        options_.observer->OnDeviceMemory(devices_[i].id, "weights", weight_bytes_[i]);
      }
    }
    models_.SetReady(model);
    ObserveState(name, version, true);
    if (options_.tune_on_load && !has_plans) {
      Tune({.model = name, .version = version, .max_wait = absl::InfiniteDuration()});
    }
  }

  absl::Status WarmUpOn(size_t device, const ServedModel& model) {
    ASSIGN_OR_RETURN(ExecutionContext context, MakeContext(devices_[device], &pool_, StreamPriority::kLow));
    const SharedContext shared_context(*shared_memory_[device], context.cuda.get());
    return WarmUp(model.programs[device], model.plans->Get(device).get(), model.limits, model.info.max_points,
                  *shared_memory_[device], context);
  }

  // So that the first request is as quick as the others. A GPU without room for it serves all the same.
  void WarmUpGpus(const ServedModel& model) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (!devices_[i].is_cuda() || stop_loading_) continue;
      const absl::Status status = WarmUpOn(i, model);
      if (!status.ok()) {
        Log(LogLevel::kWarning, "a model's first requests will be slow: it could not be warmed up",
            {{"model", model.info.name}, {"device", devices_[i].id}, {"error", std::string(status.message())}});
      }
    }
  }

  // True where every device has a tuned one.
  bool FindPlans(const ServedModel& model) {
    bool has_all = true;
    for (size_t i = 0; i < devices_.size(); ++i) {
      std::vector<std::string> problems;
      auto found = plan_store_.Find(model.plan_keys[i], FolderOf(model.info.name, model.info.version), problems);
      if (found) {
        const std::vector<std::string> more = PlanProblems(*found->plan, model.programs[i]);
        problems.insert(problems.end(), more.begin(), more.end());
        if (!more.empty()) found.reset();
      }
      for (const std::string& problem : problems) {
        Log(LogLevel::kWarning, "tuned plan passed over", {{"model", model.info.name}, {"problem", problem}});
      }
      if (found) {
        model.plans->Set(i, std::make_shared<const PlanTable>(model.programs[i], BucketsOf(*found->plan)),
                         found->source);
      }
      has_all = has_all && found.has_value();
      if (options_.observer == nullptr) continue;
      options_.observer->OnPlanLookup(found.has_value());
      options_.observer->OnPlan(model.info.name, model.info.version, devices_[i].id, model.plans->source(i));
    }
    return has_all;
  }

  void Fail(const std::string& name, int64_t version, std::vector<std::string> problems) {
    for (const std::string& problem : problems) {
      Log(LogLevel::kError, "model broken", {{"model", name}, {"version", version}, {"problem", problem}});
    }
    models_.SetFailed(name, version, std::move(problems));
  }

  void ObserveState(const std::string& name, int64_t version, bool ready) {
    if (options_.observer != nullptr) options_.observer->OnModelState(name, version, ready);
  }

  const Options options_;
  // What comes first goes last: models and workers hold memory of the devices.
  const std::vector<Device> devices_;
  kernels::ThreadPool pool_;
  std::vector<std::atomic<int64_t>> batch_bytes_;             // by device
  std::vector<int64_t> weight_bytes_;                         // by device; the loader's alone
  std::vector<std::unique_ptr<SharedMemory>> shared_memory_;  // by device
  std::atomic<int> num_working_workers_{0};
  PlanStore plan_store_;
  ServedModels models_;
  std::unique_ptr<PlanTuner> tuner_;
  Batcher batcher_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<uint64_t> next_ticket_{1};
  std::atomic<bool> stop_loading_{false};
  mutable absl::Mutex mutex_;
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread loader_;
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
  if (max_grid_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("max_grid_bytes is ", max_grid_bytes));
  if (streams_per_device < 1 || streams_per_device > kMaxStreamsPerDevice) {
    return absl::InvalidArgumentError(
        absl::StrCat("streams_per_device is ", streams_per_device, "; it must be 1 to ", kMaxStreamsPerDevice));
  }
  if (device_memory_limit < 0) {
    return absl::InvalidArgumentError(absl::StrCat("device_memory_limit is ", device_memory_limit));
  }
  return absl::OkStatus();
}

int Engine::Options::ResolvedThreads() const {
  return num_threads > 0 ? num_threads : kernels::ThreadPool::AvailableCpus();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Options options) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(RepositoryListing listing, ScanRepository(options.model_repository));
  ASSIGN_OR_RETURN(std::vector<Device> devices, OpenDevices(options.devices, options.device_memory_limit));
  for (const Device& device : devices) {
    if (device.is_cuda()) {
      Log(LogLevel::kInfo, "GPU found",
          {{"device", device.id}, {"name", device.name}, {"memory_limit_bytes", device.pool->limit_bytes()}});
    }
  }
  auto engine = std::make_unique<EngineImpl>(std::move(options), std::move(devices));
  RETURN_IF_ERROR(engine->StartWorkers());
  engine->StartLoading(std::move(listing));
  return engine;
}

}  // namespace voxserve
