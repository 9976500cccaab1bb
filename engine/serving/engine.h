#pragma once

// Engine serves the models of a model repository, a folder of model folders (serving/models/model_repository.h). Its
// main call, Submit, runs a point cloud through one of the models, asynchronously.
//
//   auto engine = Engine::Create({.model_repository = "deploy/models"});
//   engine->Submit({.model = "minkunet", .cloud = cloud, .done = [](absl::StatusOr<InferResult> r) { ... }});
//
// - Ownership: the caller owns the engine. The engine owns the devices' memory, its worker threads and the models.
// - Threads: thread-safe. Callbacks (`done`, on_progress, the functions of Options) run on one of the engine's threads
//   or on the caller's, and must not block.
// - Errors: a name in capitals in parentheses, such as (DRAINING), is the reason of a status
//   (engine/base/error_reason.h).
// - The engine knows no gRPC.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/runtime/host_buffer.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/admission/model_version_info.h"
#include "engine/serving/models/load_task.h"
#include "engine/serving/models/tune_task.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

class Engine {
 public:
  static constexpr int kMaxStreamsPerDevice = 16;
  static constexpr int kMaxTuneScans = 100;

  struct Options {
    std::string model_repository;                 // folder of model folders; required
    int num_threads = 0;                          // CPU threads; 0: as many as this process may use
    int64_t max_queue_requests = 256;             // limit of waiting tasks per model; Submit refuses more
    int64_t max_queue_bytes = int64_t{1} << 30;   // limit of the bytes of waiting clouds per model; Submit refuses more
    int64_t max_answer_bytes = 0;                 // Submit refuses an answer that is certain to exceed it; 0: no limit
    int64_t max_grid_bytes = int64_t{512} << 20;  // limit of a CPU's coordinate grid; a hash table replaces larger ones
    std::string devices;                          // "" (every GPU, else the CPU), "cpu", or "cuda:0,cuda:2"
    int streams_per_device = 2;                   // batches that run side by side on a GPU
    int64_t device_memory_limit = 0;              // bytes of each GPU that may be used; 0: all
    // Counts the host memory of weights, of running batches and of page-locked buffers. The budget must outlive the
    // engine, its results and its buffers. Null: host memory has no limit.
    MemoryBudget* memory_budget = nullptr;
    std::string plan_dir;                // folder of tuned plans; "": only those in the models' folders are used
    std::string engine_version;          // plans that were tuned by another version are not used
    absl::Duration model_poll_interval;  // how often the repository is scanned; zero: only when a call asks for it
    bool deterministic = false;          // true: the bytes of an answer do not depend on other requests. A model then
                                         // runs by its default plan, which is a little slower than a tuned one
    // True: a GPU's batches are captured as CUDA graphs, which are replayed for batches of the same shape, with the
    // same results (executor/captured_batches.h).
    bool captured_batches = true;
    bool tune_on_load = false;  // true: searches a plan for each model without one, on the first scans that it serves
    EngineObserver* observer = nullptr;  // outlives the engine; may be null
    // Called when a GPU is broken and will not work again: the process should drain and end. Called on one of the
    // engine's threads; must not block. May be empty.
    std::function<void(const absl::Status&)> on_device_failed;
    // A request that is predicted to take more device time than this, run alone, is refused (TOO_MANY_POINTS). One in a
    // minute runs nevertheless, so that predictions that are too high get corrected. Infinite: no limit.
    absl::Duration max_request_time = absl::Seconds(30);
    // A batch that runs for longer than stuck_batch_time and longer than stuck_batch_factor (0 or more) times its
    // prediction is stuck (BatchWatchdog). A batch without a prediction may take 10 times stuck_batch_time. A request's
    // default timeout is a minute, so after that time usually no client waits any more. Model loads and searches of
    // plans are not watched.
    absl::Duration stuck_batch_time = absl::Minutes(1);  // infinite: batches are not watched
    double stuck_batch_factor = 50;
    // Called when a batch is stuck. Its device may never answer, so the process should report that and end. Called on
    // one of the engine's threads; must not block. May be empty.
    std::function<void()> on_batch_stuck;

    // Returns INVALID_ARGUMENT if an option is out of its range.
    absl::Status Validate() const;
    // Returns num_threads, or the number that 0 stands for on this machine.
    int ResolvedThreads() const;
  };

  // Opens the devices, starts to load the models in the background, and returns. Errors: INVALID_ARGUMENT for bad
  // options, NOT_FOUND if the repository is not a folder or a device does not exist, PERMISSION_DENIED if the
  // repository cannot be listed, FAILED_PRECONDITION if this build has no code for a named GPU, RESOURCE_EXHAUSTED or
  // INTERNAL if a GPU does not start.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Options options);
  // Calls Drain.
  virtual ~Engine() = default;

  // Returns host memory for a cloud's bytes: page-locked memory, which a GPU copies from directly, if GPUs serve and
  // such memory is ready, else pageable memory. Never blocks. Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if the system
  // has no memory left. The buffer may outlive the engine, but not Options::memory_budget.
  virtual absl::StatusOr<HostBuffer> AllocateCloud(int64_t bytes, BufferLife life) = 0;

  // Runs a task. Never blocks. Returns a ticket for Cancel. task.done gets the result or an error:
  // - NOT_FOUND: the model or version is unknown (the message lists the existing ones);
  // - UNAVAILABLE: the model is still loading or failed to load, the engine drains, or every device is broken
  //   (DEVICE_FAILED; also the batch on which a device broke);
  // - INVALID_ARGUMENT: a field is missing, there are too many points or voxels, the model has no such output or
  //   priority level, the answer is certain to be too large, coordinates are beyond the limits, the model cannot run
  //   the sweeps together, or the cloud has too few points for the sample;
  // - RESOURCE_EXHAUSTED: the queue is full (QUEUE_FULL, with a retry delay), or memory ran out (OUT_OF_MEMORY);
  // - DEADLINE_EXCEEDED: the deadline has passed, or is predicted to be missed;
  // - CANCELLED: Cancel removed the task.
  virtual uint64_t Submit(InferTask task) = 0;

  // Removes a task from the queue if the task has not started. Its `done` gets CANCELLED, or DEADLINE_EXCEEDED if its
  // time was over. Returns false if the task has started or ended. reason: passed to EngineObserver::OnDropped.
  // NOLINTNEXTLINE(google-default-arguments): no override has another.
  virtual bool Cancel(uint64_t ticket, DropReason reason = DropReason::kCancelled) = 0;

  // Searches a plan for a model version in the background, on the scans that it serves, and then runs the version by
  // the plan. A plan says how each convolution runs. Returns at once, with a ticket for CancelTune. task.done gets the
  // result or an error:
  // - INVALID_ARGUMENT: num_scans is not 1 to kMaxTuneScans, or max_wait is negative;
  // - NOT_FOUND, UNAVAILABLE: the conditions are those of Submit;
  // - FAILED_PRECONDITION: a search for the same version is under way (ALREADY_TUNING), or Options::deterministic is
  //   set;
  // - DEADLINE_EXCEEDED: no scan came within max_wait;
  // - CANCELLED: by CancelTune or Drain, or because the version was taken out of service;
  // - RESOURCE_EXHAUSTED: none of the scans fits the memory for scans, or the search ran out of memory.
  virtual uint64_t Tune(TuneTask task) = 0;
  // Cancels the search, if it has not ended.
  virtual void CancelTune(uint64_t ticket) = 0;

  // Loads the new and changed versions in a model's folder, in the background; returns at once. A version in service
  // stays until its successor is warmed up, and remains (READY, with problems) if the successor is broken. Loads and
  // unloads run in the order of the calls. task.done gets the versions in service or an error:
  // - INVALID_ARGUMENT: the model's name cannot be the name of a folder, or the version is negative;
  // - NOT_FOUND: the repository has no such model or version (the message lists the existing ones);
  // - PERMISSION_DENIED: the repository or the model's folder cannot be listed;
  // - FAILED_PRECONDITION (BAD_MODEL): a version is broken (the message has the first problems of each);
  // - RESOURCE_EXHAUSTED: a version does not fit the memory (OUT_OF_MEMORY), or too many loads and unloads wait
  //   (QUEUE_FULL);
  // - UNAVAILABLE (DRAINING).
  virtual void Load(LoadTask task) = 0;
  // Takes versions out of service until they are loaded again by Load. Their accepted tasks are still answered.
  // task.done gets the removed versions or an error: INVALID_ARGUMENT and UNAVAILABLE for the reasons given at Load,
  // NOT_FOUND if no such model or version is listed, RESOURCE_EXHAUSTED (QUEUE_FULL) if too many calls wait.
  virtual void Unload(UnloadTask task) = 0;
  // Scans the repository once in the background, as Options::model_poll_interval does again and again: loads new and
  // changed versions, and takes removed ones out of service. Returns at once.
  virtual void Poll() = 0;

  // Blocks until every version that was found at the start has been loaded or has failed.
  virtual void WaitUntilLoaded() = 0;
  // Returns true if WaitUntilLoaded would not block.
  virtual bool loaded() const = 0;

  // Returns all listed versions, sorted by name, then by version. Loading and broken versions are listed too.
  virtual std::vector<ModelVersionInfo> ListModels() const = 0;
  // Returns one version. version 0: the newest that is ready, or the newest if none is ready. Returns NOT_FOUND if the
  // model or version is unknown.
  virtual absl::StatusOr<ModelVersionInfo> GetModel(std::string_view name, int64_t version) const = 0;

  // Refuses new tasks (UNAVAILABLE, DRAINING), finishes the accepted ones and returns when none is left. Also ends
  // searches of plans (CANCELLED) and waiting loads and unloads (DRAINING). Idempotent.
  virtual void Drain() = 0;
  // Ends the current load and refuses waiting and later loads and unloads (UNAVAILABLE, DRAINING). Returns at once. The
  // versions in service stay.
  virtual void StopLoading() = 0;
  // Refuses new and waiting tasks (UNAVAILABLE, DRAINING). Returns at once, while tasks still run; call Drain to wait
  // for them.
  virtual void RefuseQueued() = 0;

  // Returns the ids of the devices that serve: "cpu", or "cuda:0,cuda:1".
  virtual std::string devices() const = 0;
};

}  // namespace voxserve
