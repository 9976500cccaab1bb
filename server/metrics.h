#pragma once

// The process's Prometheus metrics: names, labels and buckets in one place. The engine tells it through EngineObserver,
// the server's request path through the methods below.
//
// Thread-safe. Every call is a few atomic additions behind one short lock, and never calls back. Names of models that
// the engine has not announced (OnModelState) are labelled `_unknown`, so that clients cannot make up time series.

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
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
#include "engine/serving/engine_observer.h"
#include "server/recent_rate.h"

namespace voxserve {

// What the status page says of a model, since the process started.
struct ModelStatistics {
  int64_t frames = 0;
  int64_t failures = 0;                 // requests with another code than OK
  std::vector<int64_t> frames_history;  // per second of the last minute, oldest first
  // Seconds from request to answer, of the answered ones; interpolated within a bucket. 0 where there were none.
  double p50_seconds = 0;
  double p95_seconds = 0;
  double p99_seconds = 0;
  int64_t queue_depth = 0;
  std::vector<std::pair<std::string, double>> stage_mean_seconds;  // in the order in which a request meets them
};

struct DeviceStatistics {
  std::string device;
  double busy_seconds = 0;                                    // of its compute stream
  std::vector<std::pair<std::string, int64_t>> memory_bytes;  // by kind, by name
};

// The value below which the share q of the observations lies, as Prometheus' histogram_quantile computes it: linear
// within a bucket; the last boundary where it lies beyond it; 0 without observations. counts has one more entry (+Inf)
// than boundaries and is not cumulative.
double HistogramQuantile(const std::vector<double>& boundaries, const std::vector<uint64_t>& counts, double q);

class Metrics : public EngineObserver {
 public:
  Metrics();
  ~Metrics() override;

  // Label `backend`: "cpu" or "cuda".
  void SetBuildInfo(std::string_view version, std::string_view backend);

  // A request got its status. version: the one that answered, else the one asked for (0: none). Only answers of OK
  // enter the latency histogram and the frame count: a fast refusal is no fast frame.
  void OnRequest(std::string_view model, int64_t version, absl::StatusCode code, absl::Duration duration);

  // Age of a cloud when its answer left: now - the sensor's stamp. Negative ages (clocks that disagree) are counted
  // apart.
  void OnFrameAge(std::string_view model, absl::Duration age);

  // Also for the server's own stages: decode, encode.
  void OnStage(std::string_view model, std::string_view stage, absl::Duration duration) override;
  void OnBatch(std::string_view model, int64_t requests, int64_t points, int64_t voxels) override;
  void OnPoints(std::string_view model, int64_t used, int64_t invalid, int64_t out_of_range, int64_t dropped) override;
  void OnDropped(std::string_view model, std::string_view reason) override;
  void OnQueueDepth(std::string_view model, int64_t tasks) override;
  void OnModelState(std::string_view model, int64_t version, bool ready) override;
  void OnGridFallback() override;
  void OnGeometryFallback() override;
  void OnPlanLookup(bool found) override;
  void OnPlan(std::string_view model, int64_t version, std::string_view device, std::string_view source) override;
  void OnDeviceBusy(std::string_view device, std::string_view stream, absl::Duration duration) override;
  void OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) override;

  // The exposition format (text/plain; version=0.0.4).
  std::string Text() const;

  ModelStatistics StatisticsOf(std::string_view model) const;
  std::vector<DeviceStatistics> DeviceStatisticsByName() const;

 private:
  struct ModelMetrics;  // one model's time series, looked up once

  ModelMetrics& Of(std::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  prometheus::Histogram& StageOf(ModelMetrics& metrics, std::string_view stage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_total_;
  prometheus::Family<prometheus::Counter>& frames_total_;
  prometheus::Family<prometheus::Counter>& points_total_;
  prometheus::Family<prometheus::Counter>& frames_dropped_total_;
  prometheus::Family<prometheus::Counter>& negative_frame_ages_total_;
  prometheus::Family<prometheus::Counter>& grid_fallbacks_total_;
  prometheus::Family<prometheus::Counter>& geometry_fallbacks_total_;
  prometheus::Family<prometheus::Counter>& plan_cache_hits_total_;
  prometheus::Family<prometheus::Counter>& plan_cache_misses_total_;
  prometheus::Family<prometheus::Counter>& device_busy_seconds_total_;
  prometheus::Family<prometheus::Histogram>& request_duration_seconds_;
  prometheus::Family<prometheus::Histogram>& stage_duration_seconds_;
  prometheus::Family<prometheus::Histogram>& frame_age_seconds_;
  prometheus::Family<prometheus::Histogram>& batch_requests_;
  prometheus::Family<prometheus::Histogram>& batch_points_;
  prometheus::Family<prometheus::Histogram>& batch_voxels_;
  prometheus::Family<prometheus::Gauge>& queue_depth_;
  prometheus::Family<prometheus::Gauge>& device_memory_bytes_;
  prometheus::Family<prometheus::Gauge>& model_ready_;
  prometheus::Family<prometheus::Gauge>& plan_info_;
  prometheus::Family<prometheus::Gauge>& build_info_;
  prometheus::Counter& grid_fallbacks_;
  prometheus::Counter& geometry_fallbacks_;
  prometheus::Counter& plan_cache_hits_;
  prometheus::Counter& plan_cache_misses_;

  mutable absl::Mutex mutex_;
  std::map<std::string, std::set<int64_t>, std::less<>> announced_versions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<ModelMetrics>, std::less<>> models_ ABSL_GUARDED_BY(mutex_);
  // The sources of a model's plans on a device, by version; voxserve_plan_info has a series for each that is there.
  std::map<std::pair<std::string, std::string>, std::map<int64_t, std::string>> plan_sources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
