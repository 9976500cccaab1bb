#include "deploy/tune/tune.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cpp/cli/scan_jobs.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "deploy/tune/options.h"
#include "deploy/tune/report.h"
#include "engine/base/status_macros.h"
#include "engine/executor/executor.h"
#include "engine/model/model_version.h"
#include "engine/model/problems.h"
#include "engine/runtime/devices.h"
#include "engine/runtime/host_buffer.h"
#include "engine/serving/models/device_program.h"
#include "engine/serving/models/model_repository.h"
#include "engine/tuner/plan_search.h"
#include "engine/tuner/plan_store.h"
#include "kernels/core/device_code.h"
#include "kernels/core/thread_pool.h"
#include "server/codec/codec.h"

namespace voxserve::tune {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kRedraw = absl::Milliseconds(100);  // interval of redrawing the bar in a terminal

struct Scans {
  std::vector<std::string> files;
  std::vector<InferTask> tasks;  // one per cloud
};

// Shows progress: a bar that redraws itself in a terminal, otherwise a line for each stage.
class ProgressReport {
 public:
  explicit ProgressReport(const Surroundings& surroundings) : surroundings_(surroundings) {}
  ~ProgressReport() {
    if (is_drawn_ && surroundings_.err_is_tty) *surroundings_.err << "\r\x1b[K" << std::flush;
  }

  void Show(const SearchProgress& progress) {
    const absl::Time now = absl::Now();
    const bool is_due = surroundings_.err_is_tty ? now - last_drawn_ >= kRedraw : progress.stage != stage_;
    if (!is_due) return;
    const std::string line = FormatProgress(progress, now - start_);
    *surroundings_.err << (surroundings_.err_is_tty ? absl::StrCat("\r\x1b[K", line) : absl::StrCat(line, "\n"))
                       << std::flush;
    stage_ = progress.stage;
    last_drawn_ = now;
    is_drawn_ = true;
  }

 private:
  const Surroundings& surroundings_;
  const absl::Time start_ = absl::Now();
  absl::Time last_drawn_ = absl::InfinitePast();
  std::string stage_;
  bool is_drawn_ = false;
};

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

// Returns the version `wanted`, or the folder's newest version if `wanted` is 0.
absl::StatusOr<int64_t> FindVersion(const fs::path& folder, int64_t wanted) {
  ASSIGN_OR_RETURN(const RepositoryListing listing, ScanRepository(folder.parent_path()));
  const auto model = std::find_if(listing.models.begin(), listing.models.end(),
                                  [&](const ModelFolder& m) { return m.name == folder.filename().string(); });
  if (model == listing.models.end()) {
    const std::string warnings = absl::StrJoin(listing.warnings, "; ");
    return absl::NotFoundError(absl::StrCat(folder.string(),
                                            " is not a model's folder: it has no version folder such as ",
                                            (folder / "1").string(), warnings.empty() ? "" : "; ", warnings));
  }
  const std::vector<int64_t>& versions = model->versions;
  if (wanted == 0) return versions.back();
  if (std::find(versions.begin(), versions.end(), wanted) != versions.end()) return wanted;
  return absl::NotFoundError(
      absl::StrCat(folder.string(), " has no version ", wanted, "; it has ", absl::StrJoin(versions, ", ")));
}

absl::StatusOr<std::unique_ptr<Loaded>> Load(const Options& options, const std::string& engine_version) {
  auto loaded = std::make_unique<Loaded>();
  std::error_code error;
  fs::path folder = fs::absolute(options.model_folder, error).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(options.model_folder, ": no such folder"));
  }
  ASSIGN_OR_RETURN(const int64_t version, FindVersion(folder, options.version));
  ASSIGN_OR_RETURN(loaded->model, LoadModelVersion(folder, version));
  loaded->version_folder = folder / absl::StrCat(version);
  const ModelConfig& config = loaded->model.config;
  loaded->limits = {
      .ignore_label = config.ignore_label, .max_voxels = config.max_voxels, .voxel_overflow = config.voxel_overflow};
  const int64_t threads = options.threads == 0 ? kernels::ThreadPool::AvailableCpus() : options.threads;
  loaded->pool = std::make_unique<kernels::ThreadPool>(static_cast<int>(threads));
  ASSIGN_OR_RETURN(std::vector<Device> devices, OpenDevices(options.devices, /*memory_limit_bytes=*/0));
  loaded->device = std::move(devices.front());
  ASSIGN_OR_RETURN(loaded->program, MakeProgram(loaded->model.graph, config, loaded->device));
  loaded->key = MakePlanKey(loaded->model.graph, config, loaded->device, engine_version);
  return loaded;
}

absl::StatusOr<PointCloud> ReadScan(const std::string& file, const Options& options, int64_t max_points) {
  absl::StatusOr<v1::PointCloud> message = client::ReadPointCloud(file, {.fields = options.fields});
  if (!message.ok()) return message.status();
  if (message->num_points() > static_cast<uint64_t>(max_points)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": it has ", message->num_points(), " points, the model takes at most ", max_points));
  }
  ASSIGN_OR_RETURN(HostBuffer data, HostBuffer::CopyOf(message->data()));
  absl::StatusOr<PointCloud> cloud = DecodeCloud(&*message, std::move(data));
  if (cloud.ok()) return cloud;
  return absl::Status(cloud.status().code(), absl::StrCat(file, ": ", cloud.status().message()));
}

absl::StatusOr<Scans> ReadScans(const Options& options, const std::vector<client::ScanJob>& jobs, int64_t max_points,
                                std::ostream& err) {
  Scans scans;
  absl::Status last;
  const size_t count = std::min(jobs.size(), static_cast<size_t>(options.max_scans));
  for (size_t i = 0; i < count; ++i) {
    const std::string& file = jobs[i * jobs.size() / count].input;
    absl::StatusOr<PointCloud> cloud = ReadScan(file, options, max_points);
    if (!cloud.ok()) {
      last = cloud.status();
      err << "voxserve-tune: left out: " << last.message() << std::endl;
      continue;
    }
    scans.files.push_back(file);
    scans.tasks.push_back({.cloud = *std::move(cloud)});
  }
  if (!scans.tasks.empty()) return scans;
  return absl::InvalidArgumentError(absl::StrCat("none of ", count, " scans can be used"));
}

absl::StatusOr<SearchResult> Search(const Options& options, const Loaded& loaded, const Scans& scans,
                                    const Surroundings& surroundings) {
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
  ProgressReport report(surroundings);
  return SearchPlan(loaded.program, run, scans.tasks,
                    {.may_be_nondeterministic = options.may_be_nondeterministic,
                     .repeats = static_cast<int>(options.repeats),
                     .time_limit = options.time_limit,
                     .scan_names = scans.files,
                     .on_progress = [&](const SearchProgress& progress) {
                       report.Show(progress);
                       return !surroundings.is_interrupted || !surroundings.is_interrupted();
                     }});
}

absl::Status Tune(const Options& options, const std::vector<client::ScanJob>& jobs, const Surroundings& surroundings) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Loaded> loaded, Load(options, surroundings.version));
  ASSIGN_OR_RETURN(const Scans scans, ReadScans(options, jobs, loaded->model.config.max_points, *surroundings.err));
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

int FailUsage(const absl::Status& status, std::ostream& err) {
  err << "voxserve-tune: " << status.message() << "; see voxserve-tune --help" << std::endl;
  return kExitUsage;
}

int Fail(const absl::Status& status, std::ostream& err) {
  const Problems problems = ProblemsOf(status);
  if (problems.size() < 2) {
    err << "voxserve-tune: " << (problems.empty() ? std::string(status.message()) : *problems.begin()) << std::endl;
    return kExitFailure;
  }
  err << "voxserve-tune: the model has " << problems.size() << " problems:\n";
  for (const std::string& problem : problems.Lines()) err << "  " << problem << "\n";
  err << std::flush;
  return kExitFailure;
}

}  // namespace

int Run(const std::vector<std::string>& words, const Surroundings& surroundings) {
  const absl::StatusOr<Options> options = ParseOptions(words);
  if (!options.ok()) return FailUsage(options.status(), *surroundings.err);
  if (options->wants_help) {
    *surroundings.out << HelpText() << std::flush;
    return kExitOk;
  }
  if (options->wants_version) {
    *surroundings.out << "voxserve-tune " << surroundings.version << std::endl;
    return kExitOk;
  }
  const absl::StatusOr<std::vector<client::ScanJob>> jobs = client::PlanJobs({.inputs = options->scans});
  if (!jobs.ok()) {
    return absl::IsInvalidArgument(jobs.status()) ? FailUsage(jobs.status(), *surroundings.err)
                                                  : Fail(jobs.status(), *surroundings.err);
  }
  absl::Status status;
  try {
    status = Tune(*options, *jobs, surroundings);
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("the search does not fit into memory");
  } catch (const std::exception& error) {  // from the standard library: sizes, files
    status = absl::InternalError(absl::StrCat("it failed: ", error.what()));
  }
  if (status.ok()) return kExitOk;
  if (absl::IsCancelled(status)) {
    *surroundings.err << "voxserve-tune: interrupted; nothing was written" << std::endl;
    return kExitInterrupted;
  }
  return Fail(status, *surroundings.err);
}

}  // namespace voxserve::tune
