#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace voxserve {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Histogram;

constexpr std::string_view kUnknown = "_unknown";

// Seconds, from 0.1 ms, six to seven a decade: percentiles read off them are within about a tenth.
const Histogram::BucketBoundaries& DurationBuckets() {
  static const auto* buckets = new Histogram::BucketBoundaries{
      0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02,
      0.03,   0.05,    0.075,  0.1,    0.15,   0.2,     0.3,   0.5,    0.75,  1,     1.5,   2,      3,    5,     10};
  return *buckets;
}

const Histogram::BucketBoundaries& RequestBuckets() {
  static const auto* buckets = new Histogram::BucketBoundaries{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};
  return *buckets;
}

// Points and voxels.
const Histogram::BucketBoundaries& SizeBuckets() {
  static const auto* buckets =
      new Histogram::BucketBoundaries{0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7};
  return *buckets;
}

// A request meets them in this order; others come after them.
int StageRank(std::string_view stage) {
  constexpr std::string_view kStages[] = {"decode",   "queue", "copy_in",  "voxelize", "geometry",
                                          "features", "head",  "copy_out", "encode"};
  return static_cast<int>(std::find(std::begin(kStages), std::end(kStages), stage) - std::begin(kStages));
}

std::string LabelOf(const prometheus::ClientMetric& metric, std::string_view name) {
  for (const auto& label : metric.label) {
    if (label.name == name) return label.value;
  }
  return "";
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace

struct Metrics::ModelMetrics {
  prometheus::Counter& frames;
  prometheus::Counter& used;
  prometheus::Counter& invalid;
  prometheus::Counter& out_of_range;
  prometheus::Counter& dropped;
  prometheus::Counter& negative_ages;
  Histogram& request_duration;
  Histogram& frame_age;
  Histogram& batch_requests;
  Histogram& batch_points;
  Histogram& batch_voxels;
  prometheus::Gauge& queue_depth;
  std::string label;
  std::vector<std::pair<std::string, Histogram*>> stages;
  RecentRate recent_frames;
  int64_t failures = 0;
};

double HistogramQuantile(const std::vector<double>& boundaries, const std::vector<uint64_t>& counts, double q) {
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  if (total == 0) return 0;
  const double rank = q * static_cast<double>(total);
  double below = 0;
  for (size_t i = 0; i < boundaries.size(); ++i) {
    const double count = static_cast<double>(counts[i]);
    if (count > 0 && below + count >= rank) {
      const double lower = i == 0 ? 0 : boundaries[i - 1];
      return lower + (boundaries[i] - lower) * (rank - below) / count;
    }
    below += count;
  }
  return boundaries.back();
}

Metrics::Metrics()
    : requests_total_(BuildCounter()
                          .Name("voxserve_requests_total")
                          .Help("Requests by status code; models that are not there are _unknown")
                          .Register(registry_)),
      frames_total_(BuildCounter()
                        .Name("voxserve_frames_total")
                        .Help("Point clouds answered with OK; its rate is the frames per second")
                        .Register(registry_)),
      points_total_(BuildCounter()
                        .Name("voxserve_points_total")
                        .Help("Points by what became of them: used, invalid (not finite), out_of_range, dropped (voxel "
                              "limit)")
                        .Register(registry_)),
      frames_dropped_total_(BuildCounter()
                                .Name("voxserve_frames_dropped_total")
                                .Help("Point clouds that were refused or left the queue without running")
                                .Register(registry_)),
      negative_frame_ages_total_(BuildCounter()
                                     .Name("voxserve_frame_age_negative_total")
                                     .Help("Point clouds whose stamp lies in the future: clocks disagree")
                                     .Register(registry_)),
      grid_fallbacks_total_(BuildCounter()
                                .Name("voxserve_grid_fallbacks_total")
                                .Help("Coordinate grids beyond max_grid_bytes that a hash table replaced")
                                .Register(registry_)),
      geometry_fallbacks_total_(BuildCounter()
                                    .Name("voxserve_geometry_fallbacks_total")
                                    .Help("Batches whose maps did not fit a GPU's memory and were made on the CPU")
                                    .Register(registry_)),
      plan_cache_hits_total_(BuildCounter()
                                 .Name("voxserve_plan_cache_hits_total")
                                 .Help("Models that found a tuned plan when they were loaded")
                                 .Register(registry_)),
      plan_cache_misses_total_(BuildCounter()
                                   .Name("voxserve_plan_cache_misses_total")
                                   .Help("Models that found no tuned plan that fits when they were loaded")
                                   .Register(registry_)),
      device_busy_seconds_total_(BuildCounter()
                                     .Name("voxserve_device_busy_seconds_total")
                                     .Help("Time that a device's stream spent working")
                                     .Register(registry_)),
      request_duration_seconds_(BuildHistogram()
                                    .Name("voxserve_request_duration_seconds")
                                    .Help("From a parsed request to its answer, of requests answered with OK")
                                    .Register(registry_)),
      stage_duration_seconds_(BuildHistogram()
                                  .Name("voxserve_stage_duration_seconds")
                                  .Help("Time of each stage: queue, decode, copy_in, voxelize, geometry, features, "
                                        "head, copy_out, encode")
                                  .Register(registry_)),
      frame_age_seconds_(BuildHistogram()
                             .Name("voxserve_frame_age_seconds")
                             .Help("From the sensor's stamp to the answer; clocks are assumed synchronised")
                             .Register(registry_)),
      batch_requests_(BuildHistogram().Name("voxserve_batch_requests").Help("Requests in a batch").Register(registry_)),
      batch_points_(BuildHistogram().Name("voxserve_batch_points").Help("Points in a batch").Register(registry_)),
      batch_voxels_(
          BuildHistogram().Name("voxserve_batch_voxels").Help("Occupied voxels in a batch").Register(registry_)),
      queue_depth_(BuildGauge().Name("voxserve_queue_depth").Help("Requests waiting").Register(registry_)),
      device_memory_bytes_(BuildGauge()
                               .Name("voxserve_device_memory_bytes")
                               .Help("Bytes that a device's context holds, by kind")
                               .Register(registry_)),
      model_ready_(BuildGauge()
                       .Name("voxserve_model_ready")
                       .Help("1 where the version answers requests, 0 where it is loading or failed")
                       .Register(registry_)),
      plan_info_(BuildGauge()
                     .Name("voxserve_plan_info")
                     .Help("Always 1; where the plan comes from by which the model runs on the device: default, "
                           "model (its plans folder), plan_dir, tuned (a search in this process)")
                     .Register(registry_)),
      build_info_(BuildGauge()
                      .Name("voxserve_build_info")
                      .Help("Always 1; the version and what it computes on (cpu, cuda)")
                      .Register(registry_)),
      grid_fallbacks_(grid_fallbacks_total_.Add({})),
      geometry_fallbacks_(geometry_fallbacks_total_.Add({})),
      plan_cache_hits_(plan_cache_hits_total_.Add({})),
      plan_cache_misses_(plan_cache_misses_total_.Add({})) {}

Metrics::~Metrics() = default;

void Metrics::SetBuildInfo(std::string_view version, std::string_view backend) {
  build_info_.Add({{"version", std::string(version)}, {"backend", std::string(backend)}}).Set(1);
}

void Metrics::OnRequest(std::string_view model, int64_t version, absl::StatusCode code, absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  const auto announced = announced_versions_.find(model);
  const bool is_version_known = announced != announced_versions_.end() && announced->second.contains(version);
  ModelMetrics& metrics = Of(model);
  requests_total_
      .Add({{"model", metrics.label},
            {"version", is_version_known ? absl::StrCat(version) : std::string(kUnknown)},
            {"code", CodeName(code)}})
      .Increment();
  if (code != absl::StatusCode::kOk) {
    ++metrics.failures;
    return;
  }
  metrics.frames.Increment();
  metrics.recent_frames.Add(absl::Now());
  metrics.request_duration.Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::OnFrameAge(std::string_view model, absl::Duration age) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  if (age < absl::ZeroDuration()) {
    metrics.negative_ages.Increment();
  } else {
    metrics.frame_age.Observe(absl::ToDoubleSeconds(age));
  }
}

void Metrics::OnStage(std::string_view model, std::string_view stage, absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  StageOf(Of(model), stage).Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::OnBatch(std::string_view model, int64_t requests, int64_t points, int64_t voxels) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  metrics.batch_requests.Observe(static_cast<double>(requests));
  metrics.batch_points.Observe(static_cast<double>(points));
  metrics.batch_voxels.Observe(static_cast<double>(voxels));
}

void Metrics::OnPoints(std::string_view model, int64_t used, int64_t invalid, int64_t out_of_range, int64_t dropped) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  metrics.used.Increment(static_cast<double>(used));
  metrics.invalid.Increment(static_cast<double>(invalid));
  metrics.out_of_range.Increment(static_cast<double>(out_of_range));
  metrics.dropped.Increment(static_cast<double>(dropped));
}

void Metrics::OnDropped(std::string_view model, std::string_view reason) {
  absl::MutexLock lock(&mutex_);
  frames_dropped_total_.Add({{"model", Of(model).label}, {"reason", std::string(reason)}}).Increment();
}

void Metrics::OnQueueDepth(std::string_view model, int64_t tasks) {
  absl::MutexLock lock(&mutex_);
  Of(model).queue_depth.Set(static_cast<double>(tasks));
}

void Metrics::OnModelState(std::string_view model, int64_t version, bool ready) {
  absl::MutexLock lock(&mutex_);
  announced_versions_[std::string(model)].insert(version);
  Of(model);  // from now on its series stand at 0, so that rates see the first event
  model_ready_.Add({{"model", std::string(model)}, {"version", absl::StrCat(version)}}).Set(ready ? 1 : 0);
}

void Metrics::OnGridFallback() { grid_fallbacks_.Increment(); }

void Metrics::OnGeometryFallback() { geometry_fallbacks_.Increment(); }

void Metrics::OnPlanLookup(bool found) { (found ? plan_cache_hits_ : plan_cache_misses_).Increment(); }

void Metrics::OnPlan(std::string_view model, int64_t version, std::string_view device, std::string_view source) {
  const auto series_of = [&](const std::string& of) -> prometheus::Gauge& {
    return plan_info_.Add({{"model", std::string(model)}, {"device", std::string(device)}, {"source", of}});
  };
  absl::MutexLock lock(&mutex_);
  std::map<int64_t, std::string>& sources = plan_sources_[{std::string(model), std::string(device)}];
  const std::string old = std::exchange(sources[version], std::string(source));
  series_of(sources[version]).Set(1);
  const bool is_old_in_use =
      std::any_of(sources.begin(), sources.end(), [&](const auto& entry) { return entry.second == old; });
  if (!old.empty() && !is_old_in_use) plan_info_.Remove(&series_of(old));
}

void Metrics::OnDeviceBusy(std::string_view device, std::string_view stream, absl::Duration duration) {
  device_busy_seconds_total_.Add({{"device", std::string(device)}, {"stream", std::string(stream)}})
      .Increment(absl::ToDoubleSeconds(duration));
}

void Metrics::OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) {
  device_memory_bytes_.Add({{"device", std::string(device)}, {"kind", std::string(kind)}})
      .Set(static_cast<double>(bytes));
}

std::string Metrics::Text() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, registry_.Collect());
  return std::move(text).str();
}

ModelStatistics Metrics::StatisticsOf(std::string_view model) const {
  ModelStatistics statistics;
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(model);
  if (found == models_.end()) return statistics;
  const ModelMetrics& metrics = *found->second;
  statistics.frames = std::llround(metrics.frames.Value());
  statistics.failures = metrics.failures;
  statistics.frames_history = metrics.recent_frames.History(absl::Now());
  statistics.queue_depth = std::llround(metrics.queue_depth.Value());

  std::vector<uint64_t> counts;
  uint64_t before = 0;
  for (const auto& bucket : metrics.request_duration.Collect().histogram.bucket) {
    counts.push_back(bucket.cumulative_count - before);
    before = bucket.cumulative_count;
  }
  statistics.p50_seconds = HistogramQuantile(DurationBuckets(), counts, 0.50);
  statistics.p95_seconds = HistogramQuantile(DurationBuckets(), counts, 0.95);
  statistics.p99_seconds = HistogramQuantile(DurationBuckets(), counts, 0.99);

  for (const auto& [stage, histogram] : metrics.stages) {
    const auto collected = histogram->Collect().histogram;
    if (collected.sample_count == 0) continue;
    statistics.stage_mean_seconds.emplace_back(stage,
                                               collected.sample_sum / static_cast<double>(collected.sample_count));
  }
  std::stable_sort(statistics.stage_mean_seconds.begin(), statistics.stage_mean_seconds.end(),
                   [](const auto& a, const auto& b) { return StageRank(a.first) < StageRank(b.first); });
  return statistics;
}

std::vector<DeviceStatistics> Metrics::DeviceStatisticsByName() const {
  std::map<std::string, DeviceStatistics> devices;
  for (const auto& family : device_busy_seconds_total_.Collect()) {
    for (const auto& metric : family.metric) {
      if (LabelOf(metric, "stream") != "compute") continue;
      devices[LabelOf(metric, "device")].busy_seconds = metric.counter.value;
    }
  }
  for (const auto& family : device_memory_bytes_.Collect()) {
    for (const auto& metric : family.metric) {
      devices[LabelOf(metric, "device")].memory_bytes.emplace_back(LabelOf(metric, "kind"),
                                                                   std::llround(metric.gauge.value));
    }
  }
  std::vector<DeviceStatistics> statistics;
  for (auto& [name, device] : devices) {
    device.device = name;
    std::sort(device.memory_bytes.begin(), device.memory_bytes.end());
    statistics.push_back(std::move(device));
  }
  return statistics;
}

Metrics::ModelMetrics& Metrics::Of(std::string_view model) {
  if (announced_versions_.find(model) == announced_versions_.end()) model = kUnknown;
  if (const auto found = models_.find(model); found != models_.end()) return *found->second;
  const std::string label(model);
  const auto points = [&](const char* fate) -> prometheus::Counter& {
    return points_total_.Add({{"model", label}, {"fate", fate}});
  };
  auto metrics = std::make_unique<ModelMetrics>(
      ModelMetrics{.frames = frames_total_.Add({{"model", label}}),
                   .used = points("used"),
                   .invalid = points("invalid"),
                   .out_of_range = points("out_of_range"),
                   .dropped = points("dropped"),
                   .negative_ages = negative_frame_ages_total_.Add({{"model", label}}),
                   .request_duration = request_duration_seconds_.Add({{"model", label}}, DurationBuckets()),
                   .frame_age = frame_age_seconds_.Add({{"model", label}}, DurationBuckets()),
                   .batch_requests = batch_requests_.Add({{"model", label}}, RequestBuckets()),
                   .batch_points = batch_points_.Add({{"model", label}}, SizeBuckets()),
                   .batch_voxels = batch_voxels_.Add({{"model", label}}, SizeBuckets()),
                   .queue_depth = queue_depth_.Add({{"model", label}}),
                   .label = label,
                   .stages = {},
                   .recent_frames = {}});
  return *models_.emplace(label, std::move(metrics)).first->second;
}

prometheus::Histogram& Metrics::StageOf(ModelMetrics& metrics, std::string_view stage) {
  for (const auto& [name, histogram] : metrics.stages) {
    if (name == stage) return *histogram;
  }
  Histogram& histogram =
      stage_duration_seconds_.Add({{"model", metrics.label}, {"stage", std::string(stage)}}, DurationBuckets());
  metrics.stages.emplace_back(stage, &histogram);
  return histogram;
}

}  // namespace voxserve
