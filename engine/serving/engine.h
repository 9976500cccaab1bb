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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/serving/engine_observer.h"
#include "engine/tensor/box.h"
#include "engine/tensor/farthest_points.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/point_counts.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

struct InferResult {
  std::string model;
  int64_t version = 0;
  std::string device;           // "cpu", "cuda:0"
  bool has_labels = true;        // of the model: what follows, to scores
  std::vector<uint8_t> labels;  // [num_points of the cloud * bytes_per_label], little endian
  int bytes_per_label = 1;
  int ignore_label = 255;
  int num_classes = 0;
  std::vector<float> scores;             // [num_points, num_classes] logits; empty unless asked for
  bool has_boxes = false;                // of the model: the next two
  std::vector<Box> boxes;                // in the order in which the network keeps them
  std::vector<std::string> class_names;  // by class_id; ids beyond it have no name
  PointCounts counts;                    // of all points that ran: those of every sweep
  // Of InferTask::sample: indices into the cloud, in the order of selection.
  std::vector<int32_t> sampled_points;
  // queue, copy_in, sample, voxelize, geometry, features, head, copy_out, as far as they ran.
  std::vector<StageTime> stages;
};

struct InferTask {
  std::string model;
  int64_t version = 0;  // 0: the newest that is ready
  PointCloud cloud;
  bool return_scores = false;
  std::optional<FarthestPoints> sample;  // that the answer returns; not of several sweeps
  // When the task that this one replaces began to wait: it takes that one's place in the queue.
  absl::Time waiting_since = absl::InfiniteFuture();
  // When it came to whoever submits it later, if so: the stage "queue" counts from then.
  absl::Time arrived = absl::InfiniteFuture();
  int priority = 0;                              // 0 is the most urgent; below the model's priority_levels
  absl::Time deadline = absl::InfiniteFuture();  // none: now + the model's default_timeout
  // Several sweeps that are run together, newest first: `cloud` is that of the first. Empty: the cloud alone. Labels
  // and scores are of the first sweep's points; the model's limits and the result's counts are of all points.
  std::vector<PlacedSweep> sweeps;
  std::string age_feature;  // of the model: what it reads there is a sweep's age_seconds; "": nothing is
  // Called exactly once, from the caller's thread (refusals) or one of the engine's. Must not block.
  std::function<void(absl::StatusOr<InferResult>)> done;

  // That run, of all sweeps.
  uint64_t num_points() const { return sweeps.empty() ? cloud.num_points() : NumPoints(sweeps); }
};

enum class ModelState { kLoading, kReady, kFailed };

struct ClassInfo {
  int id = 0;
  std::string name;
  uint32_t color_rgb = 0;  // 0xRRGGBB
};

struct FeatureInfo {
  std::string name;
  std::string unit;
  bool has_default = false;
  float default_value = 0;
};

struct ModelVersionInfo {
  std::string name;
  int64_t version = 0;
  ModelState state = ModelState::kLoading;
  std::vector<std::string> problems;  // all of them, of a failed version or of a ready one's broken successor
  std::string description;
  std::vector<ClassInfo> classes;
  int ignore_label = 255;
  std::vector<std::string> axes;  // the cloud's fields that are coordinates
  std::vector<FeatureInfo> features;
  int64_t max_points = 0;
  std::vector<float> voxel_size;
  int64_t num_parameters = 0;
  int priority_levels = 1;
  bool has_scores = false;  // beside labels
  bool has_labels = false;
  bool has_boxes = false;
  bool has_velocities = false;  // of the boxes
  std::string device;
  std::string digest;
  std::string plan_source;  // where the plan comes from by which it runs: "default", "model", "plan_dir", "tuned"
};

// Why a version that is not ready is not: UNAVAILABLE (MODEL_LOADING, with a retry delay, or MODEL_FAILED with its
// problems).
absl::Status WhyNotReady(const ModelVersionInfo& info);

// What Submit says of a model that is ready and has no such priority level (INVALID_ARGUMENT, BAD_PRIORITY), or no
// scores (INVALID_ARGUMENT, UNSUPPORTED_OUTPUT).
absl::Status CheckPriority(const ModelVersionInfo& info, int priority);
absl::Status CheckOutputs(const ModelVersionInfo& info, bool return_scores);

struct TuneProgress {
  std::string stage;    // "waiting for scans", "candidates", ...
  double fraction = 0;  // of the whole, 0 to 1
};

// What a search won in a range of input sizes.
struct TuneBucket {
  int64_t min_voxels = 0;  // min <= voxels < max
  int64_t max_voxels = 0;  // 0: no upper end
  int num_scans = 0;
  absl::Duration default_time;  // points to labels, median
  absl::Duration tuned_time;
};

struct TuneResult {
  std::string device;  // "cuda:0": that was searched on; its plan serves every device of its kind
  int num_scans = 0;
  std::vector<TuneBucket> buckets;
  absl::Duration search_time;
  std::string path;  // of the file; empty where it could not be written
};

struct TuneTask {
  std::string model;
  int64_t version = 0;                          // 0: the newest that is ready
  int num_scans = 16;                           // of the next requests, whose clouds are kept until the search ends
  absl::Duration max_wait = absl::Seconds(60);  // for them; then it is searched with what there is
  // From a thread of the engine's; neither may block. done is called exactly once.
  std::function<void(const TuneProgress&)> on_progress;
  std::function<void(absl::StatusOr<TuneResult>)> done;
};

struct LoadTask {
  std::string model;    // name of a folder of the model repository
  int64_t version = 0;  // 0: those that the model's version policy asks for
  // Gets the model's versions that are in service then, ascending. Called exactly once, from the caller's thread
  // (refusals) or one of the engine's; must not block. May be empty.
  std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
};

struct UnloadTask {
  std::string model;
  int64_t version = 0;  // 0: all, and what polling finds later too
  // Likewise; gets the versions that are listed no more, ascending.
  std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
};

class Engine {
 public:
  static constexpr int kMaxStreamsPerDevice = 16;
  static constexpr int kMaxTuneScans = 100;

  struct Options {
    std::string model_repository;                 // folder of model folders; required
    int num_threads = 0;                          // CPU threads; 0: as many as this process may use
    int64_t max_queue_requests = 256;             // tasks waiting per model, beyond which Submit refuses
    int64_t max_queue_bytes = int64_t{1} << 30;   // bytes of clouds waiting per model, likewise
    int64_t max_grid_bytes = int64_t{512} << 20;  // a coordinate grid's size, beyond which a hash table serves
    std::string devices;                          // "" (every GPU, else the CPU), "cpu", or "cuda:0,cuda:2"
    int streams_per_device = 2;                   // of a GPU: batches that run side by side
    int64_t device_memory_limit = 0;              // bytes of each GPU that may be used; 0: all
    std::string plan_dir;                         // folder of tuned plans; "": the models' own
    std::string engine_version;                   // tuned plans of another are not used
    absl::Duration model_poll_interval;           // how often the repository is looked through; zero: when asked to
    bool deterministic = false;                   // a request's bytes do not depend on others; untuned, a little slower
    bool tune_on_load = false;                    // search a plan for each model that has none, on what it serves first
    EngineObserver* observer = nullptr;           // outlives the engine; may be null
    // A GPU broke and will not work again: the process should drain and end. From one of the engine's threads; must
    // not block. May be empty.
    std::function<void(const absl::Status&)> on_device_failed;

    absl::Status Validate() const;
    // num_threads, or what 0 stands for here.
    int ResolvedThreads() const;
  };

  // Starts loading in the background and returns at once. INVALID_ARGUMENT for bad options, NOT_FOUND where the
  // repository is not a folder or a device is not there, RESOURCE_EXHAUSTED or INTERNAL where a GPU does not start.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Options options);
  // Drains.
  virtual ~Engine() = default;

  // Never blocks. task.done gets: NOT_FOUND (unknown model or version, naming what is there), UNAVAILABLE (still
  // loading, failed, draining), INVALID_ARGUMENT (missing field, too many points or voxels, no such
  // output, coordinates beyond the limits, sweeps that the model cannot run together, a sample that the cloud cannot
  // have), RESOURCE_EXHAUSTED (queue full, with a retry delay; out of memory), DEADLINE_EXCEEDED (it has passed, or
  // would not be met), CANCELLED. Returns a ticket for Cancel.
  virtual uint64_t Submit(InferTask task) = 0;

  // Takes a task that has not started out of the queue; its `done` gets CANCELLED. False where it has started or ended.
  // fate: what OnDropped says of it.
  virtual bool Cancel(uint64_t ticket, const char* fate = "cancelled") = 0;

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

  // "cpu" or "cuda:0,cuda:1".
  virtual std::string devices() const = 0;
};

}  // namespace voxserve
