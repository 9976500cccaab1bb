#pragma once

// ModelManager keeps the models in service as the model repository and the operator want them: it loads, reloads,
// unloads and releases versions.
//
// - Threads: thread-safe. One thread of its own does all the work, one job after the other.
// - Replacing: a version that replaces another is built and warmed up beside it, and then swapped in. Holders of the
//   old version go on with it. When its last handle ends, this thread frees its weights: no other thread waits for
//   that.
// - The versions of a model in service are:
//     those in its folder that its version policy asks for (config.textproto; default: all),
//     less those that a call unloaded (all of them: until the next load),
//     and those that a call loaded by number.
//   A version that the policy gives up goes when all that it asks for are ready: a broken newcomer costs nothing.

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
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
    absl::Duration poll_interval;   // zero: the repository is looked at when a call asks for it
    ModelTable* models = nullptr;   // outlives the manager, which alone writes to it and empties it at the end
    ModelBuilder::Options builder;  // its observer is the manager's too
    // Counts the host's memory: a version's files, graph and weights are reserved in it before they are there.
    // Null: without a limit.
    MemoryBudget* memory_budget = nullptr;
    // From the manager's thread; both may be empty.
    // A version became ready; has_plans: a tuned one on every device.
    std::function<void(const ModelVersionInfo& model, bool has_plans)> on_ready;
    // A version was taken out of service, or replaced: holders that do not need it let go of it.
    std::function<void(const ModelHandle& model)> on_retired;
  };

  // Lists what there is as loading, and starts to load it. Every handle from the table ends before the manager does.
  ModelManager(Options options, RepositoryListing listing);
  ~ModelManager();
  ModelManager(const ModelManager&) = delete;
  ModelManager& operator=(const ModelManager&) = delete;

  // As in Engine.
  void Load(LoadTask task);
  void Unload(UnloadTask task);
  void WaitUntilLoaded() const;
  bool loaded() const;

  // Cancels what waits, and the load under way as soon as that can be. Returns when nothing runs. Idempotent.
  void Stop();

 private:
  using Done = std::function<void(absl::StatusOr<std::vector<int64_t>>)>;
  struct Job {
    bool loads = false;  // else it unloads
    std::string name;
    int64_t version = 0;
    Done done;
  };
  // A version that was loaded, or that could not be.
  struct Attempt {
    std::string fingerprint;  // of the files when it began
    std::string content;      // of what is in service; "": nothing is
    absl::Status status = absl::UnknownError("not tried");
    // After a try that found no memory: when polling tries again, and how long it waits for that.
    absl::Time next_try = absl::InfiniteFuture();
    absl::Duration wait;
  };
  // The manager's thread alone uses it. What calls asked for outlives the folder.
  struct Model {
    bool is_unloaded = false;  // all of it
    std::set<int64_t> unloaded;
    std::set<int64_t> loaded_by_number;
    std::map<int64_t, Attempt> attempts;  // of the versions in the table
  };
  struct Choice {
    std::set<int64_t> wanted;      // that are in the folder
    std::vector<int64_t> missing;  // that the policy names and that are not
  };

  void Loop(const RepositoryListing& listing);
  void Enqueue(Job job);
  void Run(const Job& job);
  absl::StatusOr<std::vector<int64_t>> RunLoad(const std::string& name, int64_t version);
  absl::StatusOr<std::vector<int64_t>> RunUnload(const std::string& name, int64_t version);

  // Looks through the repository. What is broken is tried again only where it has changed; what found no memory, which
  // others may have given back, also after a while that doubles each time.
  void Poll();
  void Reconcile(const RepositoryListing& listing);
  void LogNewWarnings(const std::vector<std::string>& warnings);
  // Makes one model what its folder and the calls want. BAD_MODEL with every problem of every version.
  absl::Status ReconcileModel(const ModelFolder& folder, bool retries);
  Choice Choose(const ModelFolder& folder);
  // OK: what the files say is in service.
  absl::Status LoadVersion(const std::string& name, int64_t version, bool retries);
  absl::Status Replace(const std::string& name, int64_t version, Attempt& attempt);
  absl::Status ReplaceWithinMemory(const std::string& name, int64_t version, Attempt& attempt);
  // Compiles the version, and lets go of its graph. memory: that of the graph.
  absl::StatusOr<std::unique_ptr<ServedModel>> Build(const std::string& name, int64_t version, LoadedModel& loaded,
                                                     MemoryBudget::Reservation memory) const;
  void Fail(const std::string& name, int64_t version, const absl::Status& status);
  void Remove(const std::string& name, int64_t version, bool by_call);

  std::filesystem::path FolderOf(const std::string& name) const { return options_.repository / name; }
  void ObserveState(const std::string& name, int64_t version, bool ready);

  // The handle's end brings the version back here, from whatever thread.
  ModelHandle Adopt(std::unique_ptr<const ServedModel> model);
  void ReleaseRetired();
  void CountWeights(const ServedModel& model, int64_t sign);

  const Options options_;
  ModelBuilder builder_;
  ModelTable& models_;
  std::map<std::string, Model> known_;
  std::vector<int64_t> weight_bytes_;  // by device
  std::set<std::string> warnings_;     // of the last look

  mutable absl::Mutex mutex_;
  std::atomic<bool> stopping_{false};  // changes under mutex_
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<const ServedModel>> retired_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace voxserve
