#pragma once

// Metrics holds the process's Prometheus metrics. Each metric is declared once, with its name, help text, labels and
// buckets: as a member of ModelMetrics if every series of it is of one model and is looked up once, else as a member of
// Metrics. The engine reports to Metrics through EngineObserver, and the server's request path through the methods
// below.
//
// Thread-safe. A method that reports an event makes a few additions under one short lock, and never calls back. Models
// that the engine has not announced by OnModelState get the label `_unknown`, so that clients cannot create time
// series. When a model's last version is removed, its gauges are removed. Its counters stay, since its accepted
// requests still count.

#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/tensor/stage.h"
#include "server/metrics/family.h"
#include "server/metrics/load_meter.h"
#include "server/metrics/sliding_window.h"
#include "server/metrics/statistics.h"

namespace voxserve {

class Metrics : public EngineObserver {
 public:
  // now: the clock that defines "the last minute".
  explicit Metrics(std::function<absl::Time()> now = SteadyNow) : now_(std::move(now)) {}

  // Sets build_info. The label `backend` is "cpu" or "cuda".
  void SetBuildInfo(std::string_view version, std::string_view backend);

  // Tells that a request got its status `duration` after it was parsed. version: the version that answered, or for an
  // error the requested version (0: none). Only OK answers count in the latency histogram and the frame count, since a
  // quick refusal is not a quick frame.
  void OnRequest(std::string_view model, int64_t version, absl::StatusCode code, absl::Duration duration);

  // Tells that an Infer request was refused: its status went to gRPC `duration` after the request was parsed.
  void OnRefusal(std::string_view model, absl::StatusCode code, absl::Duration duration);

  // Tells that a call, stream or connection was refused or ended early, because its client used more than its share or
  // took too long. reason: a constant of error_reason (engine/base/error_reason.h) or of connection_reason
  // (server/acceptor/acceptor.h).
  void OnCallEndedEarly(std::string_view reason);

  // Counts a connection that ended without a call. reason: a constant of unused_connection
  // (server/acceptor/acceptor.h).
  void OnUnusedConnection(std::string_view reason);

  // Sets the number of open gRPC connections.
  void OnConnections(int64_t open);

  // Counts a cloud with a FeatureWarning.
  void OnFeatureWarning(std::string_view model, std::string_view feature);

  // Records the age of a cloud (now - the sensor's stamp) when its answer was sent. Negative ages (clocks disagree) and
  // ages above an hour (recordings) are only counted and stay out of the histogram.
  void OnFrameAge(std::string_view model, absl::Duration age);

  // Adds the number of boxes of one answer to the model's count.
  void OnBoxes(std::string_view model, int64_t boxes);

  // Tell that a stream to a listed model was opened, or closed.
  void OnStreamOpened(std::string_view model);
  void OnStreamClosed(std::string_view model);

  // The methods of EngineObserver. The server itself calls OnStage, too, for its own stages decode and encode.
  void OnStage(std::string_view model, Stage stage, absl::Duration duration) override;
  void OnBatch(std::string_view model, int64_t requests, int64_t points, int64_t voxels) override;
  void OnPoints(std::string_view model, const PointCounts& counts) override;
  void OnNotFiniteBoxes(std::string_view model, int64_t candidates) override;
  void OnPrediction(std::string_view model, absl::Duration predicted, absl::Duration actual) override;
  void OnDeviceTime(std::string_view model, absl::Duration duration) override;
  void OnStuckBatch(std::string_view model, std::string_view device) override;
  void OnDropped(std::string_view model, DropReason reason) override;
  void OnQueueDepth(std::string_view model, int64_t tasks) override;
  void OnModelState(std::string_view model, int64_t version, bool ready) override;
  void OnModelRemoved(std::string_view model, int64_t version) override;
  void OnGridFallback() override;
  void OnRerun() override;
  void OnReplay() override;
  void OnGeometryFallback() override;
  void OnPlanLookup(bool found) override;
  void OnPlan(std::string_view model, int64_t version, std::string_view device, std::string_view source) override;
  void OnDeviceBusy(std::string_view device, std::string_view stream, absl::Duration duration) override;
  void OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) override;

  // Sets the gauges of reserved host memory, by use, and of its limit, from the budget.
  void SetHostMemory(const MemoryBudget& budget);
  // Sets when the certificate or the roots that the flag names end. There is no series before the first call, nor for
  // a time that is infinite.
  void SetCertificateEnd(std::string_view flag, absl::Time end);

  // Returns all metrics in Prometheus' text exposition format (text/plain; version=0.0.4).
  std::string Text() const;

  // Returns the load of the last ten seconds (load_meter.h). num_devices: the number of devices that the engine
  // computes on.
  ServerLoad Load(int num_devices) const;

  ModelStatistics StatisticsOf(std::string_view model) const;
  // Returns zeros for a model that is not known.
  ModelTotals TotalsOf(std::string_view model) const;
  std::vector<DeviceStatistics> DeviceStatisticsByName() const;

 private:
  // The numbers that are counted for one model: its Prometheus series, looked up once, and values of the last minute
  // for the status page. Counters and histograms exist from the start, so that rates see the first event.
  struct ModelMetrics {
    ModelMetrics(prometheus::Registry* the_registry, std::string the_label);

    // Returns everything but the plans.
    ModelStatistics Statistics(absl::Time now) const;
    ModelTotals Totals() const;

    // Make the series of a metric whose one label is `model`.
    prometheus::Counter& CounterOf(const char* name, const char* help) const {
      return Counters(registry, name, help, {"model"}).With({label});
    }
    RecordedHistogram HistogramOf(const char* name, const char* help, const std::vector<double>* bounds) const {
      return Histograms(registry, name, help, {"model"}, bounds).With({label});
    }

    prometheus::Registry* const registry;
    const std::string label;

    prometheus::Counter& frames =
        CounterOf("voxserve_frames_total", "Point clouds answered with OK; its rate is the frames per second");
    SlidingWindow<int64_t, 61> recent_frames{absl::Seconds(1)};

    Counters points = {registry,
                       "voxserve_points_total",
                       "Points by result: used, invalid (not finite), out_of_range, dropped (voxel limit), unsampled "
                       "(not in the sample that the network sees)",
                       {"model", "fate"}};
    prometheus::Counter& used = points.With({label, "used"});
    prometheus::Counter& invalid = points.With({label, "invalid"});
    prometheus::Counter& out_of_range = points.With({label, "out_of_range"});
    prometheus::Counter& dropped_points = points.With({label, "dropped"});
    prometheus::Counter& unsampled = points.With({label, "unsampled"});
    prometheus::Counter& not_finite =
        CounterOf("voxserve_points_not_finite_total",
                  "Points that were used but got the ignore label because the network's logits are NaN or infinite");

    // The pointer is null until the model has answered with boxes, even with 0 boxes.
    Counters boxes_total = {registry, "voxserve_boxes_total", "Boxes in answers of models that have boxes", {"model"}};
    prometheus::Counter* boxes = nullptr;

    struct Dropped {
      prometheus::Counter& total;
      SlidingWindow<int64_t, 61> recent{absl::Seconds(1)};
    };
    Counters dropped_total = {registry,
                              "voxserve_frames_dropped_total",
                              "Point clouds that did not run, by reason: " + Listed(kDropReasonNames),
                              {"model", "reason"}};
    std::vector<Dropped> dropped = {};  // by DropReason

    RecordedHistogram request_duration =
        HistogramOf("voxserve_request_duration_seconds",
                    "Time from a parsed request to its answer, for requests answered with OK", DurationBuckets());
    RecordedHistogram refusal_duration =
        HistogramOf("voxserve_refusal_duration_seconds",
                    "Time from a parsed Infer request to its status, for refused requests", DurationBuckets());
    Histograms stage_durations = {registry,
                                  "voxserve_stage_duration_seconds",
                                  "Time of each stage: " + Listed(kStageNames),
                                  {"model", "stage"},
                                  DurationBuckets()};
    std::map<Stage, RecordedHistogram> stages = {};  // a stage's series exists from its first event on

    RecordedHistogram frame_age =
        HistogramOf("voxserve_frame_age_seconds",
                    "Time from the sensor's stamp to the answer; clocks are assumed synchronised", DurationBuckets());
    prometheus::Counter& negative_ages =
        CounterOf("voxserve_frame_age_negative_total", "Point clouds with a stamp in the future: clocks disagree");
    prometheus::Counter& stale_ages = CounterOf("voxserve_frame_age_stale_total",
                                                "Point clouds with a stamp older than an hour: recordings, or clocks "
                                                "disagree; the histogram of ages leaves them out");

    RecordedHistogram batch_requests = HistogramOf("voxserve_batch_requests", "Requests in a batch", RequestBuckets());
    RecordedHistogram batch_points = HistogramOf("voxserve_batch_points", "Points in a batch", SizeBuckets());
    RecordedHistogram batch_voxels = HistogramOf("voxserve_batch_voxels", "Occupied voxels in a batch", SizeBuckets());
    RecordedHistogram prediction_error =
        HistogramOf("voxserve_latency_prediction_error_ratio",
                    "Relative error of a batch's predicted time: |predicted - actual| / actual", ErrorRatioBuckets());
    prometheus::Counter& device_seconds = CounterOf(
        "voxserve_device_seconds_total", "Device time of a model's batches; batches side by side share their device's");

    // The two pointers are null, and no such series exists, while no version of the model is listed (announced and not
    // removed).
    Gauges queue_depths = {registry, "voxserve_queue_depth", "Requests waiting", {"model"}};
    prometheus::Gauge* queue_depth = nullptr;
    int64_t queue_tasks = 0;
    Gauges stream_counts = {registry, "voxserve_streams", "Open streams", {"model"}};
    prometheus::Gauge* streams = nullptr;
    int64_t open_streams = 0;

    std::map<std::string, int64_t> failures = {};  // by code
    absl::Time last_success = absl::InfinitePast();
  };
  // The plan sources of a model's versions on a device, and the sources that voxserve_plan_info has a series for.
  struct DevicePlans {
    std::map<int64_t, std::string> source_of_version;
    std::set<std::string> published;
  };

  static std::string Listed(absl::Span<const std::string_view> names);
  ModelMetrics& Of(std::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the metrics for a request with that status.
  ModelMetrics& Of(std::string_view model, absl::StatusCode code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsListed(std::string_view model, int64_t version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddStreams(std::string_view model, int64_t change);
  // Plans may be reported before their version is listed, or after it is removed.
  void PublishPlans(const std::string& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Makes the series of a counter without labels.
  prometheus::Counter& CounterOf(const char* name, const char* help) {
    return Counters(&registry_, name, help, {}).With({});
  }

  const std::function<absl::Time()> now_;
  prometheus::Registry registry_;

  Counters requests_total_ = {&registry_,
                              "voxserve_requests_total",
                              "Requests by status code; unknown models have the label _unknown",
                              {"model", "version", "code"}};
  Counters feature_warnings_total_ = {&registry_,
                                      "voxserve_feature_warnings_total",
                                      "Point clouds with many values outside of the range that the model states for a "
                                      "feature: another unit",
                                      {"model", "feature"}};
  Counters boxes_not_finite_total_ = {
      &registry_,
      "voxserve_boxes_not_finite_total",
      "Box candidates that were left out because their logit or another value is NaN or infinite",
      {"model"}};
  Counters stuck_batches_total_ = {&registry_,
                                   "voxserve_stuck_batches_total",
                                   "Batches that ran far longer than predicted; the process ends after the first",
                                   {"model", "device"}};
  Counters calls_ended_early_total_ = {&registry_,
                                       "voxserve_calls_ended_early_total",
                                       "Calls and connections refused or ended because their client used more than its "
                                       "share or took too long, by reason",
                                       {"reason"}};
  Counters connections_unused_total_ = {&registry_,
                                        "voxserve_connections_unused_total",
                                        "Connections that ended without a call, by how far they came",
                                        {"reason"}};
  prometheus::Counter& grid_fallbacks_ =
      CounterOf("voxserve_grid_fallbacks_total",
                "Coordinate grids that a hash table replaced because they exceed max_grid_bytes");
  prometheus::Counter& batch_reruns_ = CounterOf(
      "voxserve_batch_reruns_total", "GPU batches that ran twice because sizes, plan or memory were not as predicted");
  prometheus::Counter& batch_replays_ =
      CounterOf("voxserve_batch_replays_total", "GPU batches that were replayed as CUDA graphs");
  prometheus::Counter& geometry_fallbacks_ = CounterOf(
      "voxserve_geometry_fallbacks_total", "Batches whose maps did not fit a GPU's memory and were made on the CPU");
  prometheus::Counter& plan_cache_hits_ =
      CounterOf("voxserve_plan_cache_hits_total", "Models for which loading found a tuned plan");
  prometheus::Counter& plan_cache_misses_ =
      CounterOf("voxserve_plan_cache_misses_total", "Models for which loading found no matching tuned plan");
  Counters device_busy_seconds_total_ = {&registry_,
                                         "voxserve_device_busy_seconds_total",
                                         "Seconds that a device's stream was busy",
                                         {"device", "stream"}};
  Gauges connections_ = {&registry_, "voxserve_connections", "Open gRPC connections", {}};
  Gauges certificate_ends_ = {&registry_,
                              "voxserve_tls_not_after_timestamp_seconds",
                              "When the server's certificate, and the last of the roots for clients, end, by flag",
                              {"flag"}};
  Gauges device_memory_bytes_ = {&registry_,
                                 "voxserve_device_memory_bytes",
                                 "Device memory that the server's contexts hold, in bytes, by kind",
                                 {"device", "kind"}};
  Gauges memory_bytes_ = {&registry_, "voxserve_memory_bytes", "Reserved host memory in bytes, by use", {"use"}};
  Gauges memory_limit_bytes_ = {
      &registry_, "voxserve_memory_limit_bytes", "Limit for the sum of voxserve_memory_bytes; 0: none", {}};
  Gauges model_ready_ = {&registry_,
                         "voxserve_model_ready",
                         "1 if the version answers requests, 0 if it is loading or failed",
                         {"model", "version"}};
  Gauges plan_info_ = {&registry_,
                       "voxserve_plan_info",
                       "Always 1; the source of the model's plan on the device: default,  model (its plans folder), "
                       "plan_dir, tuned (a search in this process)",
                       {"model", "device", "source"}};
  Gauges build_info_ = {&registry_,
                        "voxserve_build_info",
                        "Always 1; the server's version and backend (cpu, cuda)",
                        {"version", "backend"}};

  mutable absl::Mutex mutex_;
  LoadMeter load_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::set<int64_t>, std::less<>> listed_versions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ModelMetrics, std::less<>> models_ ABSL_GUARDED_BY(mutex_);
  // The outer key is the model, the inner one the device.
  std::map<std::string, std::map<std::string, DevicePlans>, std::less<>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
