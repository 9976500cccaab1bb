#pragma once

// Engine serves the models of a repository. Its main call runs a cloud through one of them, asynchronously.
//
//   auto engine = Engine::Create({.model_repository = "deploy/models"});
//   engine->Submit({.model = "minkunet", .cloud = cloud, .done = [](absl::StatusOr<InferResult> r) { ... }});
//
// Thread-safe. Knows no gRPC.

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
    // Counts the host memory of weights, of running batches and of page-locked buffers. It outlives
    // the engine, its results and its clients' answers. Null: without a limit.
    MemoryBudget* memory_budget = nullptr;
    std::string plan_dir;                // folder of tuned plans; "": the models' own
    std::string engine_version;          // plans that were tuned by another version are not used
    absl::Duration model_poll_interval;  // how often the repository is scanned; zero: only when a call asks for it
    bool deterministic = false;          // a request's bytes do not depend on others; untuned, a little slower
    // A GPU's batches are captured as CUDA graphs and replayed where they are alike, with the same results. Not yet
    // measured, and so not the default.
    bool captured_batches = false;
    bool tune_on_load = false;  // searches a plan for each model without one, on the first scans that it serves
    EngineObserver* observer = nullptr;  // outlives the engine; may be null
    // Called when a GPU broke and will not work again: the process should drain and end. Called from one of the
    // engine's threads; must not block. May be empty.
    std::function<void(const absl::Status&)> on_device_failed;
    // A batch that runs for longer than stuck_batch_time and longer than stuck_batch_factor (0 or more) times its
    // prediction is stuck (BatchWatchdog). A batch without a prediction may take 10 times stuck_batch_time. After a
    // minute, the default timeout of a request, no client waits any more. Model loads and searches of plans are not
    // watched.
    absl::Duration stuck_batch_time = absl::Minutes(1);  // infinite: batches are not watched
    double stuck_batch_factor = 50;
    // Called when a batch is stuck, since its device may never answer: the process should report that and end. Called
    // from one of the engine's threads; must not block. May be empty.
    std::function<void()> on_batch_stuck;

    absl::Status Validate() const;
    // Returns num_threads, or the number that 0 stands for on this machine.
    int ResolvedThreads() const;
  };

  // Starts loading in the background and returns at once. INVALID_ARGUMENT for bad options, NOT_FOUND if the repository
  // is not a folder or a device does not exist, RESOURCE_EXHAUSTED or INTERNAL if a GPU does not start.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Options options);
  // Drains.
  virtual ~Engine() = default;

  // Returns memory for a cloud's bytes, chosen so that the devices copy them as seldom as possible: page-locked memory
  // if GPUs serve and some is ready, else ordinary memory. Never blocks. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if the
  // system has none. The buffer may outlive the engine, but not Options::memory_budget.
  virtual absl::StatusOr<HostBuffer> AllocateCloud(int64_t bytes, BufferLife life) = 0;

  // Runs a task. Never blocks. Returns a ticket for Cancel. task.done gets the result or an error:
  // - NOT_FOUND: unknown model or version (lists those that exist);
  // - UNAVAILABLE: the model is still loading or failed to load, or the server drains;
  // - INVALID_ARGUMENT: a missing field, too many points or voxels, no such output, an answer that is certain to be too
  //   large, coordinates beyond the limits, sweeps that the model cannot run together, a sample that the cloud cannot
  //   have;
  // - RESOURCE_EXHAUSTED: the queue is full (with a retry delay), or out of memory;
  // - DEADLINE_EXCEEDED: the deadline has passed, or would not be met;
  // - CANCELLED.
  virtual uint64_t Submit(InferTask task) = 0;

  // Removes a task from the queue if it has not started; its `done` gets CANCELLED. Returns false if it has started or
  // ended. reason: passed to OnDropped.
  // NOLINTNEXTLINE(google-default-arguments): no override has another.
  virtual bool Cancel(uint64_t ticket, DropReason reason = DropReason::kCancelled) = 0;

  // Searches a plan for a model on the scans that it serves, in the background, and swaps it in. Returns at once.
  // task.done gets: NOT_FOUND and UNAVAILABLE as in Submit, FAILED_PRECONDITION (ALREADY_TUNING) while a search of the
  // same model is under way, DEADLINE_EXCEEDED where no scan came within max_wait, CANCELLED, RESOURCE_EXHAUSTED.
  // Returns a ticket for CancelTune.
  virtual uint64_t Tune(TuneTask task) = 0;
  virtual void CancelTune(uint64_t ticket) = 0;

  // Loads the new and changed versions in a model's folder, in the background; returns at once. A version in service
  // stays until its successor is warm, and remains (READY, with problems) if the successor is broken. task.done gets:
  // INVALID_ARGUMENT (not a folder's name), NOT_FOUND (lists the repository's models), FAILED_PRECONDITION (BAD_MODEL)
  // with every problem of every broken version, RESOURCE_EXHAUSTED (out of memory; too many calls wait), UNAVAILABLE
  // (DRAINING). Loads and unloads run in the order of the calls.
  virtual void Load(LoadTask task) = 0;
  // Takes versions out of service; tasks that were accepted are answered. They stay out until Load. task.done gets
  // NOT_FOUND, RESOURCE_EXHAUSTED and UNAVAILABLE as above.
  virtual void Unload(UnloadTask task) = 0;

  // Blocks until every version that was found at the start has been loaded or has failed.
  virtual void WaitUntilLoaded() = 0;
  virtual bool loaded() const = 0;

  // Returns all versions by name, then by version; loading and broken ones too.
  virtual std::vector<ModelVersionInfo> ListModels() const = 0;
  // Returns one version; 0: the newest that is ready, else the newest. NOT_FOUND as in Submit.
  virtual absl::StatusOr<ModelVersionInfo> GetModel(std::string_view name, int64_t version) const = 0;

  // Refuses new tasks (UNAVAILABLE, DRAINING), finishes the accepted ones and returns when none is left. Idempotent.
  virtual void Drain() = 0;
  // Refuses new and waiting tasks: UNAVAILABLE, reason DRAINING. Returns at once; Drain finishes the running tasks.
  virtual void RefuseQueued() = 0;

  // Returns "cpu" or "cuda:0,cuda:1".
  virtual std::string devices() const = 0;
};

}  // namespace voxserve
