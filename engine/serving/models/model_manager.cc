#include "engine/serving/models/model_manager.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/base/tell_done.h"
#include "engine/base/thread_priority.h"
#include "engine/model/problems.h"

namespace voxserve {
namespace {

// Made once, while there is memory (by ModelManager's constructor), since it is returned where there is none.
const absl::Status& OutOfMemory() {
  static const absl::Status& error = *new absl::Status(OutOfMemoryError("it does not fit into memory"));
  return error;
}

// The longest time between two tries of a version that found no memory, since each try reads all its files.
constexpr absl::Duration kLongestWait = absl::Minutes(1);

// The most copies of the weights that exist at once during compilation: the graph's own, the layers' after folding and
// fusing, and those that the steps pack.
constexpr int64_t kCopiesOfWeights = 3;

// Errors name the problems of this many versions of a model.
constexpr int kMaxVersionsTold = 10;

bool IsDraining(const absl::Status& status) { return ReasonOf(status) == error_reason::kDraining; }

bool Contains(const std::vector<int64_t>& versions, int64_t version) {
  return std::find(versions.begin(), versions.end(), version) != versions.end();
}

// Returns one error for the versions that did not load. If only memory was missing, the model does not count as broken.
absl::Status StatusOfFailures(const std::string& name, const std::map<int64_t, absl::Status>& failures) {
  if (failures.empty()) return absl::OkStatus();
  std::string message = absl::StrCat("model ", Quoted(name));
  bool is_broken = false;
  int num_versions = 0;
  for (const auto& [version, status] : failures) {
    if (IsDraining(status)) return status;
    is_broken = is_broken || !absl::IsResourceExhausted(status);
    if (++num_versions > kMaxVersionsTold) continue;
    absl::StrAppend(&message, num_versions == 1 ? " " : "; ", "version ", version, " has ", TextOf(ProblemsOf(status)));
  }
  if (num_versions > kMaxVersionsTold) {
    absl::StrAppend(&message, "; and ", num_versions - kMaxVersionsTold, " more versions have problems");
  }
  return is_broken ? WithReason(absl::FailedPreconditionError(message), error_reason::kBadModel)
                   : OutOfMemoryError(message);
}

// Returns an exception as an error: whatever a file does to its reader, it must not end the process.
absl::Status CatchExceptions(const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& error) {  // from the standard library: sizes, files
    return absl::InternalError(absl::StrCat("it failed with ", Quoted(error.what())));
  }
}

// Logs an exception of `work` and goes on: the next poll or call tries again.
void LogExceptions(const std::function<void()>& work) {
  const absl::Status status = CatchExceptions([&] {
    work();
    return absl::OkStatus();
  });
  if (status.ok()) return;
  try {
    Log(LogLevel::kError, "the model repository was not brought into service",
        {{"error", std::string(status.message())}});
  } catch (const std::bad_alloc&) {  // then the log lacks the line
  }
}

absl::Status CheckNames(const std::string& name, int64_t version) {
  if (!IsModelName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model ", Quoted(name), " is no name of a folder in the repository"));
  }
  if (version < 0) return absl::InvalidArgumentError(absl::StrCat("version is ", version));
  return absl::OkStatus();
}

}  // namespace

ModelManager::ModelManager(Options options, RepositoryListing listing)
    : options_(std::move(options)),
      builder_(options_.builder),
      models_(*options_.models),
      weight_bytes_(builder_.devices().size()) {
  OutOfMemory().IgnoreError();
  for (const ModelFolder& folder : listing.models) {
    LogExceptions([&] {
      for (const int64_t version : Choose(folder).wanted) {
        models_.AddLoading(folder.name, version);
        ObserveState(folder.name, version, false);
      }
    });
  }
  thread_ = std::thread([this, listing = std::move(listing)] { Loop(listing); });
}

ModelManager::~ModelManager() {
  Stop();
  thread_.join();
  models_.Clear();
  ReleaseRetired();
}

void ModelManager::RequestStop() {
  absl::MutexLock lock(&mutex_);
  stopping_.request_stop();
  changed_.Signal();
}

void ModelManager::Stop() {
  RequestStop();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&has_ended_));
}

void ModelManager::Load(LoadTask task) {
  Enqueue({.loads = true, .name = std::move(task.model), .version = task.version, .done = std::move(task.done)});
}

void ModelManager::Unload(UnloadTask task) {
  Enqueue({.loads = false, .name = std::move(task.model), .version = task.version, .done = std::move(task.done)});
}

void ModelManager::PollSoon() {
  absl::MutexLock lock(&mutex_);
  polls_soon_ = true;
  changed_.Signal();
}

void ModelManager::WaitUntilLoaded() const {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&loaded_));
}

bool ModelManager::loaded() const {
  absl::MutexLock lock(&mutex_);
  return loaded_;
}

void ModelManager::Enqueue(Job job) {
  absl::Status refused = CheckNames(job.name, job.version);
  if (refused.ok()) {
    absl::MutexLock lock(&mutex_);
    if (stopping_.stop_requested()) {
      refused = DrainingError();
    } else if (jobs_.size() >= kMaxWaitingJobs) {
      refused = WithRetryDelay(
          WithReason(absl::ResourceExhaustedError(absl::StrCat(jobs_.size(), " loads and unloads wait already")),
                     error_reason::kQueueFull),
          absl::Seconds(1));
    } else {
      jobs_.push_back(std::move(job));
      changed_.Signal();
    }
  }
  if (!refused.ok() && job.done) job.done(std::move(refused));
}

void ModelManager::Loop(const RepositoryListing& listing) {
  LogExceptions([&] { Reconcile(listing); });
  {
    absl::MutexLock lock(&mutex_);
    loaded_ = true;
  }
  const bool polls = options_.poll_interval > absl::ZeroDuration();
  absl::Time next_poll = polls ? SteadyNow() + options_.poll_interval : absl::InfiniteFuture();
  while (!stopping_.stop_requested()) {
    std::optional<Job> job;
    bool polls_now = false;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_.stop_requested() && !polls_soon_ && jobs_.empty() && retired_.empty() &&
             SteadyNow() < next_poll) {
        changed_.WaitUntil(&mutex_, next_poll);
      }
      polls_now = std::exchange(polls_soon_, false);
      if (!stopping_.stop_requested() && !jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
    }
    LogExceptions([this] { ReleaseRetired(); });
    if (job.has_value()) Run(*job);
    if (polls_now || SteadyNow() >= next_poll) {
      LogExceptions([this] { Poll(); });
      if (polls) next_poll = SteadyNow() + options_.poll_interval;
    }
  }
  std::deque<Job> cancelled;
  {
    absl::MutexLock lock(&mutex_);
    cancelled.swap(jobs_);
  }
  for (const Job& job : cancelled) {
    TellDone(job.done, DrainingError());
  }
  absl::MutexLock lock(&mutex_);
  has_ended_ = true;
}

void ModelManager::Run(const Job& job) {
  absl::StatusOr<std::vector<int64_t>> versions;
  const absl::Status caught = CatchExceptions([&] {
    versions = job.loads ? RunLoad(job.name, job.version) : RunUnload(job.name, job.version);
    return absl::OkStatus();
  });
  if (!caught.ok()) versions = caught;
  TellDone(job.done, std::move(versions));
}

absl::StatusOr<std::vector<int64_t>> ModelManager::RunLoad(const std::string& name, int64_t version) {
  std::vector<std::string> warnings = {warnings_.begin(), warnings_.end()};
  const absl::StatusOr<ModelFolder> scanned = ScanModel(options_.repository, name, &warnings);
  LogNewWarnings(warnings);
  ASSIGN_OR_RETURN(const ModelFolder folder, scanned);
  if (version == 0) {
    Model& model = known_[name];
    model.is_unloaded = false;
    model.unloaded.clear();
    RETURN_IF_ERROR(ReconcileModel(folder, true));
    return models_.ReadyVersions(name);
  }
  if (!Contains(folder.versions, version)) {
    return WithReason(absl::NotFoundError(absl::StrCat("the folder of model ", Quoted(name), " has no version ",
                                                       version, "; there is ", absl::StrJoin(folder.versions, ", "))),
                      error_reason::kVersionNotFound);
  }
  Model& model = known_[name];
  model.unloaded.erase(version);
  model.loaded_by_number.insert(version);
  if (const absl::Status status = LoadVersion(name, version, true); !status.ok()) {
    return StatusOfFailures(name, {{version, status}});
  }
  return models_.ReadyVersions(name);
}

absl::StatusOr<std::vector<int64_t>> ModelManager::RunUnload(const std::string& name, int64_t version) {
  RETURN_IF_ERROR(models_.Describe(name, version).status());
  Model& model = known_[name];
  const std::vector<int64_t> versions = version == 0 ? models_.Versions(name) : std::vector<int64_t>{version};
  if (version == 0) model.is_unloaded = true;
  for (const int64_t one : versions) {
    model.unloaded.insert(one);
    model.loaded_by_number.erase(one);
    Remove(name, one, true);
  }
  return versions;
}

void ModelManager::Poll() {
  const absl::StatusOr<RepositoryListing> listing = ScanRepository(options_.repository);
  // If the repository cannot be read (a network share may be away for a moment), nothing is taken out of service.
  if (!listing.ok()) return LogNewWarnings({std::string(listing.status().message())});
  Reconcile(*listing);
}

void ModelManager::LogNewWarnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    if (warnings_.count(warning) == 0) Log(LogLevel::kWarning, "model repository", {{"problem", warning}});
  }
  warnings_ = {warnings.begin(), warnings.end()};
}

void ModelManager::Reconcile(const RepositoryListing& listing) {
  LogNewWarnings(listing.warnings);
  std::set<std::string> present(listing.unreadable.begin(), listing.unreadable.end());
  for (const ModelFolder& folder : listing.models) present.insert(folder.name);
  for (const std::string& name : models_.Names()) {
    if (present.count(name) > 0) continue;
    for (const int64_t version : models_.Versions(name)) Remove(name, version, false);
  }
  for (const ModelFolder& folder : listing.models) {
    if (stopping_.stop_requested()) return;
    // Problems are already in the log and in the table.
    LogExceptions([&] { ReconcileModel(folder, false).IgnoreError(); });
  }
}

ModelManager::Choice ModelManager::Choose(const ModelFolder& folder) {
  const Model& model = known_[folder.name];
  Choice choice;
  if (!model.is_unloaded) {
    Problems problems;
    const VersionPolicy policy = ReadVersionPolicy(FolderOf(folder.name), &problems);
    VersionPolicy::Choice asked = policy.Choose(folder.versions);
    LogConfigProblems(folder, problems);
    // If the config is broken, the listed versions stay as they are.
    if (std::vector<int64_t> listed = models_.Versions(folder.name); !problems.empty() && !listed.empty()) {
      asked.versions = std::move(listed);
    }
    choice.wanted = {asked.versions.begin(), asked.versions.end()};
    choice.missing = std::move(asked.missing);
  }
  for (const int64_t version : model.unloaded) {
    choice.wanted.erase(version);
    choice.missing.erase(std::remove(choice.missing.begin(), choice.missing.end(), version), choice.missing.end());
  }
  choice.wanted.insert(model.loaded_by_number.begin(), model.loaded_by_number.end());
  for (auto version = choice.wanted.begin(); version != choice.wanted.end();) {
    version = Contains(folder.versions, *version) ? std::next(version) : choice.wanted.erase(version);
  }
  return choice;
}

void ModelManager::LogConfigProblems(const ModelFolder& folder, const Problems& problems) {
  std::set<std::string>& logged = known_[folder.name].config_problems;
  const std::filesystem::path config = FolderOf(folder.name) / kConfigFile;
  const bool is_read_by_load = std::any_of(folder.versions.begin(), folder.versions.end(), [&](int64_t version) {
    return ConfigPathOf(FolderOf(folder.name), version) == config;
  });
  const std::vector<std::string> lines = is_read_by_load ? std::vector<std::string>() : problems.Lines();
  for (const std::string& problem : lines) {
    if (logged.count(problem) > 0) continue;
    Log(LogLevel::kError, "model's config broken", {{"model", folder.name}, {"problem", problem}});
  }
  logged = {lines.begin(), lines.end()};
}

absl::Status ModelManager::ReconcileModel(const ModelFolder& folder, bool retries) {
  const Choice choice = Choose(folder);
  std::map<int64_t, absl::Status> failures;
  // Removes versions whose folder is gone first, to free their memory.
  const std::vector<int64_t> ready = models_.ReadyVersions(folder.name);
  for (const int64_t version : models_.Versions(folder.name)) {
    const bool is_told_missing = Contains(choice.missing, version) && !Contains(ready, version);
    if (!Contains(folder.versions, version) && !is_told_missing) Remove(folder.name, version, false);
  }
  const std::vector<int64_t> listed = models_.Versions(folder.name);
  for (const int64_t version : choice.missing) {
    failures[version] = absl::NotFoundError("version_policy names it, and there is no such folder");
    if (!Contains(listed, version)) Fail(folder.name, version, failures[version]);
  }
  for (const int64_t version : choice.wanted) {
    if (stopping_.stop_requested()) return DrainingError();
    if (absl::Status status = LoadVersion(folder.name, version, retries); !status.ok()) failures[version] = status;
  }
  if (!failures.empty()) return StatusOfFailures(folder.name, failures);
  for (const int64_t version : models_.Versions(folder.name)) {
    if (choice.wanted.count(version) == 0) Remove(folder.name, version, false);
  }
  return absl::OkStatus();
}

absl::Status ModelManager::LoadVersion(const std::string& name, int64_t version, bool retries) {
  ReleaseRetired();  // frees the memory of versions that were replaced just now
  Attempt& attempt = known_[name].attempts[version];
  std::string fingerprint = FingerprintOf(FolderOf(name), version);
  if (fingerprint != attempt.fingerprint) {
    attempt.wait = absl::ZeroDuration();
  } else if (attempt.status.ok() || !(retries || SteadyNow() >= attempt.next_try)) {
    return attempt.status;
  }
  const bool is_ready = Contains(models_.ReadyVersions(name), version);
  models_.AddLoading(name, version);
  if (!is_ready) ObserveState(name, version, false);
  attempt.fingerprint = std::move(fingerprint);
  attempt.status = CatchExceptions([&] { return Replace(name, version, attempt); });
  if (absl::IsResourceExhausted(attempt.status)) {
    attempt.wait = std::max(options_.poll_interval, std::min(2 * attempt.wait, kLongestWait));
    attempt.next_try = SteadyNow() + attempt.wait;
  } else {
    attempt.next_try = absl::InfiniteFuture();
  }
  if (!attempt.status.ok() && !IsDraining(attempt.status)) Fail(name, version, attempt.status);
  return attempt.status;
}

absl::Status ModelManager::Replace(const std::string& name, int64_t version, Attempt& attempt) {
  const absl::Time start = SteadyNow();
  MemoryBudget::Reservation memory;
  if (options_.memory_budget != nullptr) {
    ASSIGN_OR_RETURN(memory, options_.memory_budget->Reserve(MemoryBudget::Use::kModels, 0));
  }
  absl::StatusOr<LoadedModel> read;
  RunAtLowPriority(
      [&] { read = LoadModelVersion(FolderOf(name), version, {.memory = &memory, .stop = stopping_.get_token()}); });
  ASSIGN_OR_RETURN(LoadedModel loaded, std::move(read));
  if (loaded.content == attempt.content) {
    models_.SetFailed(name, version, {});  // clears the problems of a broken successor that is gone
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> made, Build(name, version, loaded, std::move(memory)));
  const ModelHandle model = Adopt(std::move(made));
  const bool has_plans = builder_.FindPlans(*model, FolderOf(name) / absl::StrCat(version));
  builder_.WarmUp(*model, stopping_.get_token());
  if (stopping_.stop_requested()) return DrainingError();
  StartAsPredecessor(*model);
  Log(LogLevel::kInfo, "model ready",
      {{"model", name},
       {"version", version},
       {"precision", model->on_device.front().plan_key.dtype},
       LogField::IfAny("config", loaded.config.file == kConfigFile ? "" : loaded.config.file),
       {"parameters", model->info.num_parameters},
       {"weight_bytes", model->program().weight_bytes},
       {"plan", model->plans->source(0)},
       {"load_ms", absl::ToInt64Milliseconds(SteadyNow() - start)}});
  attempt.content = std::move(loaded.content);
  if (const ModelHandle replaced = models_.SetReady(model); replaced == nullptr) {
    ObserveState(name, version, true);
  } else if (options_.on_retired) {
    options_.on_retired(replaced);
  }
  if (options_.on_ready) options_.on_ready(model->info, has_plans);
  return absl::OkStatus();
}

void ModelManager::StartAsPredecessor(const ServedModel& model) const {
  const std::string& name = model.info.name;
  std::vector<int64_t> versions = models_.ReadyVersions(name);
  versions.push_back(model.info.version);  // first its own earlier build, then the newest version
  for (size_t i = 0; i < model.on_device.size(); ++i) {
    const ServedModel::OnDevice& on_device = model.on_device[i];
    for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
      const absl::StatusOr<ModelHandle> other = models_.Find(name, *version);
      if (!other.ok() || (*other)->on_device[i].plan_key.dtype != on_device.plan_key.dtype) continue;
      on_device.StartAs((*other)->on_device[i]);
      break;
    }
  }
}

absl::StatusOr<std::unique_ptr<ServedModel>> ModelManager::Build(const std::string& name, int64_t version,
                                                                 LoadedModel& loaded,
                                                                 MemoryBudget::Reservation memory) const {
  RETURN_IF_ERROR(memory.Resize(kCopiesOfWeights * memory.bytes()));
  ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> made, builder_.Make(name, version, loaded, stopping_.get_token()));
  loaded.graph = Graph();
  int64_t host_bytes = 0;
  for (size_t i = 0; i < made->on_device.size(); ++i) {
    if (!builder_.devices()[i].is_cuda()) host_bytes += made->on_device[i].program.weight_bytes;
  }
  RETURN_IF_ERROR(memory.Resize(host_bytes));
  made->host_memory = std::move(memory);
  return made;
}

void ModelManager::Fail(const std::string& name, int64_t version, const absl::Status& status) {
  std::vector<std::string> problems = ProblemsOf(status).Lines();
  for (const std::string& problem : problems) {
    Log(LogLevel::kError, "model broken", {{"model", name}, {"version", version}, {"problem", problem}});
  }
  models_.SetFailed(name, version, std::move(problems));
}

void ModelManager::Remove(const std::string& name, int64_t version, bool by_call) {
  known_[name].attempts.erase(version);
  const ModelHandle model = models_.Remove(name, version, by_call);
  ObserveState(name, version, false);
  if (options_.builder.observer != nullptr) options_.builder.observer->OnModelRemoved(name, version);
  if (model == nullptr) return;
  Log(LogLevel::kInfo, "model unloaded",
      {{"model", name}, {"version", version}, {"why", by_call ? "call" : "repository"}});
  if (options_.on_retired) options_.on_retired(model);
}

void ModelManager::ObserveState(const std::string& name, int64_t version, bool ready) {
  if (options_.builder.observer != nullptr) options_.builder.observer->OnModelState(name, version, ready);
}

ModelHandle ModelManager::Adopt(std::unique_ptr<const ServedModel> model) {
  CountWeights(*model, 1);
  return ModelHandle(model.release(), [this](const ServedModel* retired) {
    absl::MutexLock lock(&mutex_);
    retired_.emplace_back(retired);
    changed_.Signal();
  });
}

void ModelManager::ReleaseRetired() {
  std::vector<std::unique_ptr<const ServedModel>> retired;
  {
    absl::MutexLock lock(&mutex_);
    retired.swap(retired_);
  }
  if (retired.empty()) return;
  for (const std::unique_ptr<const ServedModel>& model : retired) CountWeights(*model, -1);
  retired.clear();
  builder_.ReturnMemory();
}

void ModelManager::CountWeights(const ServedModel& model, int64_t sign) {
  for (size_t i = 0; i < weight_bytes_.size(); ++i) {
    weight_bytes_[i] += sign * model.on_device[i].program.weight_bytes;
    if (options_.builder.observer == nullptr) continue;
    options_.builder.observer->OnDeviceMemory(builder_.devices()[i].id, "weights", weight_bytes_[i]);
  }
}

}  // namespace voxserve
