#pragma once

// The process's Prometheus metrics: names, labels and buckets in one place. The engine tells it through EngineObserver,
// the server's request path through the methods below.
//
// Thread-safe. Every call is a few additions behind one short lock, and never calls back. Names of models that the
// engine has not announced (OnModelState) are labelled `_unknown`, so that clients cannot make up time series. Of a
// model that was removed the gauges go, and the counters stand: what it had accepted still counts.

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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/tensor/stage.h"
#include "server/metrics/model_metrics.h"

namespace voxserve {

struct DeviceStatistics {
  std::string device;
  double busy_seconds = 0;                                    // of all its streams together
  std::vector<std::pair<std::string, int64_t>> memory_bytes;  // by kind, by name
};

class Metrics : public EngineObserver {
 public:
  // now: what "the last minute" is counted by.
  explicit Metrics(std::function<absl::Time()> now = absl::Now);
  ~Metrics() override;

  // Label `backend`: "cpu" or "cuda".
  void SetBuildInfo(std::string_view version, std::string_view backend);

  // A request got its status. version: the one that answered, else the one asked for (0: none). Only answers of OK
  // enter the latency histogram and the frame count: a fast refusal is no fast frame.
  void OnRequest(std::string_view model, int64_t version, absl::StatusCode code, absl::Duration duration);

  // An Infer request was not let in, and its status is handed to gRPC: so long after the request was there.
  void OnRefusal(std::string_view model, absl::StatusCode code, absl::Duration duration);

  // A call, stream or connection was refused or ended before its time, since its client took more than its share or too
  // long. reason: one of error_reason's, or of the acceptor's.
  void OnCallEndedEarly(std::string_view reason);

  // gRPC connections that are open now.
  void OnConnections(int64_t open);

  // Age of a cloud when its answer left: now - the sensor's stamp. Negative ages (clocks that disagree) are counted
  // apart, and so are ages above an hour (recordings).
  void OnFrameAge(std::string_view model, absl::Duration age);

  // An answer has so many boxes.
  void OnBoxes(std::string_view model, int64_t boxes);

  // A stream to a listed model opened; it closed.
  void OnStreamOpened(std::string_view model);
  void OnStreamClosed(std::string_view model);

  // Also for the server's own stages: decode, encode.
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
  void OnGeometryFallback() override;
  void OnPlanLookup(bool found) override;
  void OnPlan(std::string_view model, int64_t version, std::string_view device, std::string_view source) override;
  void OnDeviceBusy(std::string_view device, std::string_view stream, absl::Duration duration) override;
  void OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) override;

  // Bytes of the host's memory that are reserved, by use, and their limit.
  void SetHostMemory(const MemoryBudget& budget);

  // The exposition format (text/plain; version=0.0.4).
  std::string Text() const;

  ModelStatistics StatisticsOf(std::string_view model) const;
  std::vector<DeviceStatistics> DeviceStatisticsByName() const;

 private:
  // The sources of a model's plans on a device, and of which of them voxserve_plan_info has a series.
  struct DevicePlans {
    std::map<int64_t, std::string> source_of_version;
    std::set<std::string> published;
  };

  ModelMetrics& Of(std::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a request with that status.
  ModelMetrics& Of(std::string_view model, absl::StatusCode code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StageMetrics& StageOf(ModelMetrics& metrics, Stage stage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsListed(std::string_view model, int64_t version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddStreams(std::string_view model, int64_t change);
  // Plans may be told before their version is listed, or after it is gone.
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
  prometheus::Counter& geometry_fallbacks_;
  prometheus::Counter& plan_cache_hits_;
  prometheus::Counter& plan_cache_misses_;

  mutable absl::Mutex mutex_;
  std::map<std::string, std::set<int64_t>, std::less<>> listed_versions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<ModelMetrics>, std::less<>> models_ ABSL_GUARDED_BY(mutex_);
  // By model, then by device.
  std::map<std::string, std::map<std::string, DevicePlans>, std::less<>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
