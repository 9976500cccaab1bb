#pragma once

// Metrics holds the process's Prometheus metrics and defines their names, labels and buckets. The engine reports to it
// through EngineObserver, and the server's request path through the methods below.
//
// Thread-safe. A method that reports an event makes a few additions under one short lock, and never calls back. Models
// that the engine has not announced by OnModelState get the label `_unknown`, so that clients cannot create time
// series. When a model's last version is removed, its gauges are removed. Its counters stay, since its accepted
// requests still count.

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/tensor/stage.h"
#include "server/metrics/load_meter.h"
#include "server/metrics/model_metrics.h"

namespace voxserve {

struct DeviceStatistics {
  std::string device;
  double busy_seconds = 0;  // sum over the device's streams, since the process started
  std::vector<std::pair<std::string, int64_t>> memory_bytes;  // by kind of memory (OnDeviceMemory)
};

class Metrics : public EngineObserver {
 public:
  // now: the clock that defines "the last minute".
  explicit Metrics(std::function<absl::Time()> now = SteadyNow);
  ~Metrics() override;

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

  // Sets the number of open gRPC connections.
  void OnConnections(int64_t open);

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
  // The plan sources of a model's versions on a device, and the sources that voxserve_plan_info has a series for.
  struct DevicePlans {
    std::map<int64_t, std::string> source_of_version;
    std::set<std::string> published;
  };

  ModelMetrics& Of(std::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the metrics for a request with that status.
  ModelMetrics& Of(std::string_view model, absl::StatusCode code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StageMetrics& StageOf(ModelMetrics& metrics, Stage stage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsListed(std::string_view model, int64_t version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddStreams(std::string_view model, int64_t change);
  // Plans may be reported before their version is listed, or after it is removed.
  void PublishPlans(const std::string& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<absl::Time()> now_;
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_total_;
  prometheus::Family<prometheus::Counter>& frames_total_;
  prometheus::Family<prometheus::Counter>& points_total_;
  prometheus::Family<prometheus::Counter>& points_not_finite_total_;
  prometheus::Family<prometheus::Counter>& boxes_total_;
  prometheus::Family<prometheus::Counter>& boxes_not_finite_total_;
  prometheus::Family<prometheus::Counter>& frames_dropped_total_;
  prometheus::Family<prometheus::Counter>& stuck_batches_total_;
  prometheus::Family<prometheus::Counter>& calls_ended_early_total_;
  prometheus::Family<prometheus::Counter>& negative_frame_ages_total_;
  prometheus::Family<prometheus::Counter>& stale_frame_ages_total_;
  prometheus::Family<prometheus::Counter>& grid_fallbacks_total_;
  prometheus::Family<prometheus::Counter>& batch_reruns_total_;
  prometheus::Family<prometheus::Counter>& batch_replays_total_;
  prometheus::Family<prometheus::Counter>& geometry_fallbacks_total_;
  prometheus::Family<prometheus::Counter>& plan_cache_hits_total_;
  prometheus::Family<prometheus::Counter>& plan_cache_misses_total_;
  prometheus::Family<prometheus::Counter>& device_busy_seconds_total_;
  prometheus::Family<prometheus::Counter>& device_seconds_total_;
  prometheus::Family<prometheus::Histogram>& request_duration_seconds_;
  prometheus::Family<prometheus::Histogram>& refusal_duration_seconds_;
  prometheus::Family<prometheus::Histogram>& stage_duration_seconds_;
  prometheus::Family<prometheus::Histogram>& frame_age_seconds_;
  prometheus::Family<prometheus::Histogram>& batch_requests_;
  prometheus::Family<prometheus::Histogram>& batch_points_;
  prometheus::Family<prometheus::Histogram>& batch_voxels_;
  prometheus::Family<prometheus::Histogram>& latency_prediction_error_ratio_;
  prometheus::Family<prometheus::Gauge>& queue_depth_;
  prometheus::Family<prometheus::Gauge>& streams_;
  prometheus::Family<prometheus::Gauge>& connections_;
  prometheus::Family<prometheus::Gauge>& device_memory_bytes_;
  prometheus::Family<prometheus::Gauge>& memory_bytes_;
  prometheus::Family<prometheus::Gauge>& memory_limit_bytes_;
  prometheus::Family<prometheus::Gauge>& model_ready_;
  prometheus::Family<prometheus::Gauge>& plan_info_;
  prometheus::Family<prometheus::Gauge>& build_info_;
  prometheus::Counter& grid_fallbacks_;
  prometheus::Counter& batch_reruns_;
  prometheus::Counter& batch_replays_;
  prometheus::Counter& geometry_fallbacks_;
  prometheus::Counter& plan_cache_hits_;
  prometheus::Counter& plan_cache_misses_;

  mutable absl::Mutex mutex_;
  LoadMeter load_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::set<int64_t>, std::less<>> listed_versions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<ModelMetrics>, std::less<>> models_ ABSL_GUARDED_BY(mutex_);
  // The outer key is the model, the inner one the device.
  std::map<std::string, std::map<std::string, DevicePlans>, std::less<>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
