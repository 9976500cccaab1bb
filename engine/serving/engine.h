#pragma once

// The engine's front door: models of a repository, and one asynchronous call that runs a cloud through one of them.
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
    int64_t max_queue_requests = 256;             // tasks waiting per model, beyond which Submit refuses
    int64_t max_queue_bytes = int64_t{1} << 30;   // bytes of clouds waiting per model, likewise
    int64_t max_answer_bytes = 0;                 // beyond which Submit refuses what is certain to exceed it; 0: none
    int64_t max_grid_bytes = int64_t{512} << 20;  // a CPU's coordinate grid, beyond which a hash table serves
    std::string devices;                          // "" (every GPU, else the CPU), "cpu", or "cuda:0,cuda:2"
    int streams_per_device = 2;                   // of a GPU: batches that run side by side
    int64_t device_memory_limit = 0;              // bytes of each GPU that may be used; 0: all
    // Counts the host's memory: weights, what batches compute with and page-locked memory are reserved in it. Outlives
    // the engine, its results and its clients' answers. Null: without a limit.
    MemoryBudget* memory_budget = nullptr;
    std::string plan_dir;                // folder of tuned plans; "": the models' own
    std::string engine_version;          // tuned plans of another are not used
    absl::Duration model_poll_interval;  // how often the repository is looked through; zero: when asked to
    bool deterministic = false;          // a request's bytes do not depend on others; untuned, a little slower
    // A GPU's batches are captured as CUDA graphs and replayed where they are alike, with the same results. Not yet
    // measured, and so not the default.
    bool captured_batches = false;
    bool tune_on_load = false;           // search a plan for each model that has none, on what it serves first
    EngineObserver* observer = nullptr;  // outlives the engine; may be null
    // A GPU broke and will not work again: the process should drain and end. From one of the engine's threads; must
    // not block. May be empty.
    std::function<void(const absl::Status&)> on_device_failed;
    // A batch that runs for longer than stuck_batch_time, and than stuck_batch_factor (0 or more) times its prediction,
    // is stuck (BatchWatchdog). One without a prediction may take 10 times stuck_batch_time. A minute is what a request
    // without a deadline gets by default: nobody waits any more. Model loads and searches of plans are not watched.
    absl::Duration stuck_batch_time = absl::Minutes(1);  // infinite: batches are not watched
    double stuck_batch_factor = 50;
    // A batch is stuck, and its device may never answer: the process should say so and end. From a thread of the
    // engine's; must not block. May be empty.
    std::function<void()> on_batch_stuck;

    absl::Status Validate() const;
    // num_threads, or what 0 stands for here.
    int ResolvedThreads() const;
  };

  // Starts loading in the background and returns at once. INVALID_ARGUMENT for bad options, NOT_FOUND where the
  // repository is not a folder or a device is not there, RESOURCE_EXHAUSTED or INTERNAL where a GPU does not start.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Options options);
  // Drains.
  virtual ~Engine() = default;

  // Memory for a cloud's bytes, from which the devices read it with as few copies as can be: page-locked where GPUs
  // serve and some is ready, else ordinary. Never blocks. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where the system has none.
  // The buffer may outlive the engine, but not Options::memory_budget.
  virtual absl::StatusOr<HostBuffer> AllocateCloud(int64_t bytes, BufferLife life) = 0;

  // Never blocks. task.done gets: NOT_FOUND (unknown model or version, naming what is there), UNAVAILABLE (still
  // loading, failed, draining), INVALID_ARGUMENT (missing field, too many points or voxels, no such
  // output, an answer that is certain to be too large, coordinates beyond the limits, sweeps that the model cannot run
  // together, a sample that the cloud cannot have), RESOURCE_EXHAUSTED (queue full, with a retry delay; out of memory),
  // DEADLINE_EXCEEDED (it has passed, or would not be met), CANCELLED. Returns a ticket for Cancel.
  virtual uint64_t Submit(InferTask task) = 0;

  // Takes a task that has not started out of the queue; its `done` gets CANCELLED. False where it has started or ended.
  // reason: what OnDropped says of it.
  // NOLINTNEXTLINE(google-default-arguments): no override has another.
  virtual bool Cancel(uint64_t ticket, DropReason reason = DropReason::kCancelled) = 0;

  // Searches a plan for a model on the scans that it serves, in the background, and swaps it in. Returns at once.
  // task.done gets: NOT_FOUND and UNAVAILABLE as in Submit, FAILED_PRECONDITION (ALREADY_TUNING) while a search of the
  // same model is under way, DEADLINE_EXCEEDED where no scan came within max_wait, CANCELLED, RESOURCE_EXHAUSTED.
  // Returns a ticket for CancelTune.
  virtual uint64_t Tune(TuneTask task) = 0;
  virtual void CancelTune(uint64_t ticket) = 0;

  // Loads what is new in a model's folder and what has changed there, in the background; returns at once. A version in
  // service goes on until its successor is warm, and stays (READY, with problems) where that is broken. task.done gets:
  // INVALID_ARGUMENT (no name of a folder), NOT_FOUND (naming what the repository has), FAILED_PRECONDITION (BAD_MODEL)
  // with every problem of every version that is broken, RESOURCE_EXHAUSTED (out of memory; too many calls wait),
  // UNAVAILABLE (DRAINING). Loads and unloads run in the order of the calls.
  virtual void Load(LoadTask task) = 0;
  // Takes versions out of service; tasks that were accepted are answered. They stay out until Load. task.done gets
  // NOT_FOUND, RESOURCE_EXHAUSTED and UNAVAILABLE as above.
  virtual void Unload(UnloadTask task) = 0;

  // Blocks until every version that was found at the start has been loaded or has failed.
  virtual void WaitUntilLoaded() = 0;
  virtual bool loaded() const = 0;

  // By name, then by version; loading and broken ones too.
  virtual std::vector<ModelVersionInfo> ListModels() const = 0;
  // version 0: the newest that is ready, else the newest. NOT_FOUND as in Submit.
  virtual absl::StatusOr<ModelVersionInfo> GetModel(std::string_view name, int64_t version) const = 0;

  // Refuses new tasks (UNAVAILABLE, DRAINING), finishes those accepted, returns when none is left. Idempotent.
  virtual void Drain() = 0;
  // Refuses new tasks, and those that wait: UNAVAILABLE, reason DRAINING. Returns at once; Drain finishes the others.
  virtual void RefuseQueued() = 0;

  // "cpu" or "cuda:0,cuda:1".
  virtual std::string devices() const = 0;
};

}  // namespace voxserve
