#include "deploy/tune/tune.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/cli/scan_jobs.h"
#include "deploy/offline/scan_files.h"
#include "deploy/tune/options.h"
#include "deploy/tune/report.h"
#include "engine/base/status_macros.h"
#include "engine/executor/executor.h"
#include "engine/model/model_version.h"
#include "engine/runtime/devices.h"
#include "engine/serving/models/device_program.h"
#include "engine/tuner/plan_search.h"
#include "engine/tuner/plan_store.h"
#include "kernels/core/device_code.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::tune {
namespace {

namespace fs = std::filesystem;

constexpr char kProgram[] = "voxserve-tune";

// A loaded model with the objects that it needs. Members are destroyed in reverse order, so each member comes after
// those that it uses.
struct Loaded {
  std::unique_ptr<kernels::ThreadPool> pool;
  Device device;
  LoadedModel model;
  fs::path version_folder;
  Program program;
  RunLimits limits;
  PlanKey key;
};

absl::StatusOr<std::unique_ptr<Loaded>> Load(const Options& options, const std::string& engine_version) {
  auto loaded = std::make_unique<Loaded>();
  ASSIGN_OR_RETURN(const offline::FoundVersion found, offline::FindVersion(options.model));
  ASSIGN_OR_RETURN(loaded->model, LoadModelVersion(found.model_folder, found.version));
  loaded->version_folder = found.folder();
  const ModelConfig& config = loaded->model.config;
  loaded->limits = offline::LimitsOf(config);
  const int64_t threads = options.threads == 0 ? kernels::ThreadPool::AvailableCpus() : options.threads;
  loaded->pool = std::make_unique<kernels::ThreadPool>(static_cast<int>(threads));
  ASSIGN_OR_RETURN(std::vector<Device> devices, OpenDevices(options.devices, /*memory_limit_bytes=*/0));
  loaded->device = std::move(devices.front());
  ASSIGN_OR_RETURN(loaded->program, MakeProgram(loaded->model.graph, config, loaded->device));
  loaded->key = MakePlanKey(loaded->model.graph, config, loaded->device, engine_version);
  return loaded;
}

absl::StatusOr<SearchResult> Search(const Options& options, const Loaded& loaded, const offline::Scans& scans,
                                    const offline::Surroundings& surroundings) {
  ASSIGN_OR_RETURN(ExecutionContext context, MakeContext(loaded.device, loaded.pool.get()));
  if constexpr (kernels::kHasCuda) {
    if (context.cuda != nullptr) RETURN_IF_ERROR(context.cuda->MakeCurrent());
  }
  const std::unique_ptr<Executor> executor = Executor::Create(&context);
  const RunScan run = [&](const PlanTable& plans, const InferTask& scan, const ScanRunOptions& wanted) {
    InferTask task = scan;
    task.return_scores = wanted.return_scores;
    return executor->Run(loaded.program, task, loaded.limits, {.plans = &plans, .times_convs = wanted.times_convs});
  };
  offline::ProgressReport report(surroundings);
  return SearchPlan(loaded.program, run, scans.tasks,
                    {.may_be_nondeterministic = options.may_be_nondeterministic,
                     .repeats = static_cast<int>(options.repeats),
                     .time_limit = options.time_limit,
                     .scan_names = scans.files,
                     .on_progress = [&](const SearchProgress& progress) {
                       report.Show(progress.fraction, progress.stage);
                       return !surroundings.wants_stop();
                     }});
}

absl::Status Tune(const Options& options, const std::vector<client::ScanJob>& jobs,
                  const offline::Surroundings& surroundings) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Loaded> loaded, Load(options, surroundings.version));
  ASSIGN_OR_RETURN(const offline::Scans scans, offline::ReadScans(kProgram, jobs,
                                                                  {.fields = options.fields,
                                                                   .max_scans = options.max_scans,
                                                                   .max_points = loaded->model.config.max_points},
                                                                  surroundings));
  PlanStore store(options.plan_dir);
  if (!options.is_dry_run) RETURN_IF_ERROR(store.CheckSave(loaded->key, loaded->version_folder));
  ASSIGN_OR_RETURN(const SearchResult result, Search(options, *loaded, scans, surroundings));
  const std::string device = loaded->device.name.empty()
                                 ? loaded->key.device
                                 : absl::StrCat(loaded->device.name, " (", loaded->device.id, ")");
  *surroundings.out << FormatResult(result, device) << std::flush;
  if (options.is_dry_run) return absl::OkStatus();
  ASSIGN_OR_RETURN(const fs::path path,
                   store.Save(std::make_shared<TunedPlan>(TunedPlan{.key = loaded->key, .buckets = result.buckets}),
                              loaded->version_folder));
  *surroundings.out << "wrote " << path.string() << std::endl;
  return absl::OkStatus();
}

}  // namespace

int Run(const std::vector<std::string>& words, const offline::Surroundings& surroundings) {
  const absl::StatusOr<Options> options = ParseOptions(words);
  return offline::RunOnScans(
      kProgram, options.status(), options.ok() ? *options : Options(), HelpText, surroundings,
      [&](const std::vector<client::ScanJob>& jobs) { return Tune(*options, jobs, surroundings); });
}

}  // namespace voxserve::tune
