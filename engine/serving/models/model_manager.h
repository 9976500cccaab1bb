#pragma once

// ModelManager keeps those models in service that the model repository and the operator's calls ask for: it loads,
// reloads, unloads and frees versions. The engine owns one.
//
// - Threads: thread-safe. The manager has one thread, which does all the work, one job after the other.
// - Replacing: a new build of a version (its files have changed) is built and warmed up beside the old build, and then
//   takes its place in the ModelTable. Tasks that hold the old build still run on it. When the last handle of the old
//   build ends, the manager's thread frees its weights, so that no other thread waits for that.
// - The versions of a model in service are:
//     the versions in its folder that its version policy asks for (config.textproto; default: all),
//     without the versions that Unload named, until Load names them or all versions,
//     without any, if Unload named all versions (version 0), until Load names all,
//     and the versions that Load named by number.
//   A version that is no longer asked for, but whose folder exists, is removed only when all versions that are asked
//   for are ready. So a broken new version does not take a working one out of service.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/models/load_task.h"
#include "engine/serving/models/model_builder.h"
#include "engine/serving/models/model_repository.h"
#include "engine/serving/models/model_table.h"

namespace voxserve {

class ModelManager {
 public:
  static constexpr int kMaxWaitingJobs = 64;

  struct Options {
    std::filesystem::path repository;
    absl::Duration poll_interval;   // zero: the repository is scanned only when a call asks for it
    ModelTable* models = nullptr;   // outlives the manager; only the manager writes to it, and empties it at the end
    ModelBuilder::Options builder;  // the manager also uses its `observer`
    // Counts host memory: a version's files, graph and weights are reserved in it before they are allocated.
    // Null: host memory has no limit.
    MemoryBudget* memory_budget = nullptr;
    // The functions below are called on the manager's thread; both may be empty.
    // A version became ready. has_plans: no plan need be searched, since the version has a tuned plan on every device
    // or always runs by the default plan (is_deterministic).
    std::function<void(const ModelVersionInfo& model, bool has_plans)> on_ready;
    // A version was taken out of service or replaced: whoever holds its handle should release it if they can.
    std::function<void(const ModelHandle& model)> on_retired;
  };

  // Lists the versions of `listing` that are asked for as loading, and starts to load them. Every handle from the table
  // must end before the manager is destroyed.
  ModelManager(Options options, RepositoryListing listing);
  ~ModelManager();
  ModelManager(const ModelManager&) = delete;
  ModelManager& operator=(const ModelManager&) = delete;

  // These methods do the same as the methods of Engine with these names (engine.h describes them and their errors).
  void Load(LoadTask task);
  void Unload(UnloadTask task);
  void PollSoon();  // Engine::Poll
  void WaitUntilLoaded() const;
  bool loaded() const;

  // Refuses waiting and later jobs (UNAVAILABLE, DRAINING), and asks the current load to end. Returns at once.
  // Idempotent.
  void RequestStop();
  // Does the same, and blocks until no job runs.
  void Stop();

 private:
  using Done = std::function<void(absl::StatusOr<std::vector<int64_t>>)>;
  struct Job {
    bool loads = false;  // true: the job is a Load; false: an Unload
    std::string name;
    int64_t version = 0;
    Done done;
  };
  // The last attempt to load a version, successful or not.
  struct Attempt {
    std::string fingerprint;  // FingerprintOf the files when the attempt began
    std::string content;      // LoadedModel::content of the version in service; "" if it is not in service
    absl::Status status = absl::UnknownError("not tried");
    // After an attempt that found no memory: the time from which a poll tries again, and the wait until then.
    absl::Time next_try = absl::InfiniteFuture();
    absl::Duration wait;
  };
  // The calls for one model so far, and the attempts to load it. Only the manager's thread uses it. It stays if the
  // model's folder disappears, and is used again if the folder comes back.
  struct Model {
    bool is_unloaded = false;  // true: a call unloaded all versions
    std::set<int64_t> unloaded;
    std::set<int64_t> loaded_by_number;
    std::map<int64_t, Attempt> attempts;    // by version; only for versions in the table
    std::set<std::string> config_problems;  // that LogConfigProblems has logged
  };
  // The versions of a model that are asked for.
  struct Choice {
    std::set<int64_t> wanted;      // versions that are asked for and are in the folder
    std::vector<int64_t> missing;  // versions that the policy names and that are not in the folder
  };

  void Loop(const RepositoryListing& listing);
  void Enqueue(Job job);
  void Run(const Job& job);
  absl::StatusOr<std::vector<int64_t>> RunLoad(const std::string& name, int64_t version);
  absl::StatusOr<std::vector<int64_t>> RunUnload(const std::string& name, int64_t version);

  // Scans the repository. A broken version is tried again only after its files have changed. A version that found no
  // memory, which may be free by now, is also tried again after a wait that doubles each time.
  void Poll();
  void Reconcile(const RepositoryListing& listing);
  void LogNewWarnings(const std::vector<std::string>& warnings);
  // Brings one model to the state that its folder and the calls ask for. retries: tries broken versions again even if
  // their files have not changed. Returns FAILED_PRECONDITION (BAD_MODEL) with every problem of every broken version.
  absl::Status ReconcileModel(const ModelFolder& folder, bool retries);
  Choice Choose(const ModelFolder& folder);
  // Logs new problems of the model's config, unless a version is loaded by it: the load then reports them.
  void LogConfigProblems(const ModelFolder& folder, const Problems& problems);
  // Returns OK if the version in service matches the files.
  absl::Status LoadVersion(const std::string& name, int64_t version, bool retries);
  absl::Status Replace(const std::string& name, int64_t version, Attempt& attempt);
  // Lets the version's predictions of time and memory begin with those of its earlier build, or of the newest version
  // that computes in the same precision on the device.
  void StartAsPredecessor(const ServedModel& model) const;
  // Compiles the version and frees its graph. memory: the reservation of the graph.
  absl::StatusOr<std::unique_ptr<ServedModel>> Build(const std::string& name, int64_t version, LoadedModel& loaded,
                                                     MemoryBudget::Reservation memory) const;
  void Fail(const std::string& name, int64_t version, const absl::Status& status);
  void Remove(const std::string& name, int64_t version, bool by_call);

  std::filesystem::path FolderOf(const std::string& name) const { return ModelFolderOf(options_.repository, name); }
  void ObserveState(const std::string& name, int64_t version, bool ready);

  // Returns a handle to the version. When the last copy of the handle ends, on any thread, the version is put into
  // retired_.
  ModelHandle Adopt(std::unique_ptr<const ServedModel> model);
  void ReleaseRetired();
  void CountWeights(const ServedModel& model, int64_t sign);

  const Options options_;
  ModelBuilder builder_;
  ModelTable& models_;
  std::map<std::string, Model> known_;
  std::vector<int64_t> weight_bytes_;  // by device
  std::set<std::string> warnings_;     // of the last scan

  mutable absl::Mutex mutex_;
  SteadyCondVar changed_;      // signalled when stopping_, polls_soon_, jobs_ or retired_ changes
  std::stop_source stopping_;  // changes under mutex_
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool polls_soon_ ABSL_GUARDED_BY(mutex_) = false;  // PollSoon was called
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<const ServedModel>> retired_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace voxserve
