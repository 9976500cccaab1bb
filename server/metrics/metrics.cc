#include "server/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "server/metrics/recent_rate.h"

namespace voxserve {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;

constexpr std::string_view kUnknown = "_unknown";
// Frames older than this are counted apart, and not in the histogram of ages: a client may stamp a frame with any time
// since the year 1, and the age of one such frame would dominate the histogram's sum.
constexpr absl::Duration kMaxFrameAge = absl::Hours(1);

std::string LabelOf(const prometheus::ClientMetric& metric, std::string_view name) {
  for (const auto& label : metric.label) {
    if (label.name == name) return label.value;
  }
  return "";
}

std::string Listed(absl::Span<const std::string_view> names) {
  return absl::StrJoin(names, ", ", [](std::string* out, std::string_view name) { out->append(name); });
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

// Adds a value to both histograms. A value that is not finite is left out, since it would stay in the sum for good.
// Values below 0 become 0; a clock that was set back would give one.
void Observe(double value, absl::Time now, prometheus::Histogram* total, RecentHistogram* recent) {
  if (!std::isfinite(value)) return;
  value = std::max(value, 0.0);
  total->Observe(value);
  recent->Observe(value, now);
}

}  // namespace

Metrics::Metrics(std::function<absl::Time()> now)
    : now_(std::move(now)),
      requests_total_(BuildCounter()
                          .Name("voxserve_requests_total")
                          .Help("Requests by status code; unknown models have the label _unknown")
                          .Register(registry_)),
      frames_total_(BuildCounter()
                        .Name("voxserve_frames_total")
                        .Help("Point clouds answered with OK; its rate is the frames per second")
                        .Register(registry_)),
      points_total_(BuildCounter()
                        .Name("voxserve_points_total")
                        .Help("Points by result: used, invalid (not finite), out_of_range, dropped (voxel limit), "
                              "unsampled (not in the sample that the network sees)")
                        .Register(registry_)),
      points_not_finite_total_(BuildCounter()
                                   .Name("voxserve_points_not_finite_total")
                                   .Help("Points that were used but got the ignore label because the network's logits "
                                         "are NaN or infinite")
                                   .Register(registry_)),
      boxes_total_(BuildCounter()
                       .Name("voxserve_boxes_total")
                       .Help("Boxes in answers of models that have boxes")
                       .Register(registry_)),
      boxes_not_finite_total_(BuildCounter()
                                  .Name("voxserve_boxes_not_finite_total")
                                  .Help("Box candidates that were left out because their logit or another value is NaN "
                                        "or infinite")
                                  .Register(registry_)),
      frames_dropped_total_(BuildCounter()
                                .Name("voxserve_frames_dropped_total")
                                .Help("Point clouds that did not run, by reason: " + Listed(kDropReasonNames))
                                .Register(registry_)),
      stuck_batches_total_(BuildCounter()
                               .Name("voxserve_stuck_batches_total")
                               .Help("Batches that ran far longer than predicted; the process ends after the first")
                               .Register(registry_)),
      calls_ended_early_total_(BuildCounter()
                                   .Name("voxserve_calls_ended_early_total")
                                   .Help("Calls and connections refused or ended because their client used more "
                                         "than its share or took too long, by reason")
                                   .Register(registry_)),
      negative_frame_ages_total_(BuildCounter()
                                     .Name("voxserve_frame_age_negative_total")
                                     .Help("Point clouds with a stamp in the future: clocks disagree")
                                     .Register(registry_)),
      stale_frame_ages_total_(BuildCounter()
                                  .Name("voxserve_frame_age_stale_total")
                                  .Help("Point clouds with a stamp older than an hour: recordings, or clocks "
                                        "disagree; the histogram of ages leaves them out")
                                  .Register(registry_)),
      grid_fallbacks_total_(BuildCounter()
                                .Name("voxserve_grid_fallbacks_total")
                                .Help("Coordinate grids that a hash table replaced because they exceed max_grid_bytes")
                                .Register(registry_)),
      batch_reruns_total_(BuildCounter()
                              .Name("voxserve_batch_reruns_total")
                              .Help("GPU batches that ran twice because sizes, plan or memory were not as predicted")
                              .Register(registry_)),
      batch_replays_total_(BuildCounter()
                               .Name("voxserve_batch_replays_total")
                               .Help("GPU batches that were replayed as CUDA graphs")
                               .Register(registry_)),
      geometry_fallbacks_total_(BuildCounter()
                                    .Name("voxserve_geometry_fallbacks_total")
                                    .Help("Batches whose maps did not fit a GPU's memory and were made on the CPU")
                                    .Register(registry_)),
      plan_cache_hits_total_(BuildCounter()
                                 .Name("voxserve_plan_cache_hits_total")
                                 .Help("Models for which loading found a tuned plan")
                                 .Register(registry_)),
      plan_cache_misses_total_(BuildCounter()
                                   .Name("voxserve_plan_cache_misses_total")
                                   .Help("Models for which loading found no matching tuned plan")
                                   .Register(registry_)),
      device_busy_seconds_total_(BuildCounter()
                                     .Name("voxserve_device_busy_seconds_total")
                                     .Help("Seconds that a device's stream was busy")
                                     .Register(registry_)),
      device_seconds_total_(BuildCounter()
                                .Name("voxserve_device_seconds_total")
                                .Help("Device time of a model's batches; batches side by side share their device's")
                                .Register(registry_)),
      request_duration_seconds_(BuildHistogram()
                                    .Name("voxserve_request_duration_seconds")
                                    .Help("Time from a parsed request to its answer, for requests answered with OK")
                                    .Register(registry_)),
      refusal_duration_seconds_(BuildHistogram()
                                    .Name("voxserve_refusal_duration_seconds")
                                    .Help("Time from a parsed Infer request to its status, for refused requests")
                                    .Register(registry_)),
      stage_duration_seconds_(BuildHistogram()
                                  .Name("voxserve_stage_duration_seconds")
                                  .Help("Time of each stage: " + Listed(kStageNames))
                                  .Register(registry_)),
      frame_age_seconds_(BuildHistogram()
                             .Name("voxserve_frame_age_seconds")
                             .Help("Time from the sensor's stamp to the answer; clocks are assumed synchronised")
                             .Register(registry_)),
      batch_requests_(BuildHistogram().Name("voxserve_batch_requests").Help("Requests in a batch").Register(registry_)),
      batch_points_(BuildHistogram().Name("voxserve_batch_points").Help("Points in a batch").Register(registry_)),
      batch_voxels_(
          BuildHistogram().Name("voxserve_batch_voxels").Help("Occupied voxels in a batch").Register(registry_)),
      latency_prediction_error_ratio_(
          BuildHistogram()
              .Name("voxserve_latency_prediction_error_ratio")
              .Help("Relative error of a batch's predicted time: |predicted - actual| / actual")
              .Register(registry_)),
      queue_depth_(BuildGauge().Name("voxserve_queue_depth").Help("Requests waiting").Register(registry_)),
      streams_(BuildGauge().Name("voxserve_streams").Help("Open streams").Register(registry_)),
      connections_(BuildGauge().Name("voxserve_connections").Help("Open gRPC connections").Register(registry_)),
      device_memory_bytes_(BuildGauge()
                               .Name("voxserve_device_memory_bytes")
                               .Help("Device memory that the server's contexts hold, in bytes, by kind")
                               .Register(registry_)),
      memory_bytes_(
          BuildGauge().Name("voxserve_memory_bytes").Help("Reserved host memory in bytes, by use").Register(registry_)),
      memory_limit_bytes_(BuildGauge()
                              .Name("voxserve_memory_limit_bytes")
                              .Help("Limit for the sum of voxserve_memory_bytes; 0: none")
                              .Register(registry_)),
      model_ready_(BuildGauge()
                       .Name("voxserve_model_ready")
                       .Help("1 if the version answers requests, 0 if it is loading or failed")
                       .Register(registry_)),
      plan_info_(BuildGauge()
                     .Name("voxserve_plan_info")
                     .Help("Always 1; the source of the model's plan on the device: default,  "
                           "model (its plans folder), plan_dir, tuned (a search in this process)")
                     .Register(registry_)),
      build_info_(BuildGauge()
                      .Name("voxserve_build_info")
                      .Help("Always 1; the server's version and backend (cpu, cuda)")
                      .Register(registry_)),
      grid_fallbacks_(grid_fallbacks_total_.Add({})),
      batch_reruns_(batch_reruns_total_.Add({})),
      batch_replays_(batch_replays_total_.Add({})),
      geometry_fallbacks_(geometry_fallbacks_total_.Add({})),
      plan_cache_hits_(plan_cache_hits_total_.Add({})),
      plan_cache_misses_(plan_cache_misses_total_.Add({})) {}

Metrics::~Metrics() = default;

void Metrics::SetBuildInfo(std::string_view version, std::string_view backend) {
  build_info_.Add({{"version", std::string(version)}, {"backend", std::string(backend)}}).Set(1);
}

void Metrics::OnRequest(std::string_view model, int64_t version, absl::StatusCode code, absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model, code);
  // An answer names its version, which may be unloaded by now. A refusal repeats the version that the client asked for.
  const bool is_version_known =
      IsListed(model, version) || (code == absl::StatusCode::kOk && metrics.label != kUnknown);
  requests_total_
      .Add({{"model", metrics.label},
            {"version", is_version_known ? absl::StrCat(version) : std::string(kUnknown)},
            {"code", CodeName(code)}})
      .Increment();
  const absl::Time now = now_();
  if (code != absl::StatusCode::kOk) {
    ++metrics.failures[CodeName(code)];
    if (IsServersError(code)) load_.AddError(now);
    return;
  }
  load_.AddAnswer(now);
  metrics.frames.Increment();
  metrics.recent_frames.Add(now);
  metrics.last_success = now;
  Observe(absl::ToDoubleSeconds(duration), now, &metrics.request_duration, &metrics.recent_latency);
}

void Metrics::OnRefusal(std::string_view model, absl::StatusCode code, absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model, code);
  Observe(absl::ToDoubleSeconds(duration), now_(), &metrics.refusal_duration, &metrics.recent_refusals);
}

void Metrics::OnCallEndedEarly(std::string_view reason) {
  calls_ended_early_total_.Add({{"reason", std::string(reason)}}).Increment();
}

void Metrics::OnConnections(int64_t open) { connections_.Add({}).Set(static_cast<double>(open)); }

void Metrics::OnFrameAge(std::string_view model, absl::Duration age) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  if (age < absl::ZeroDuration()) {
    metrics.negative_ages.Increment();
  } else if (age > kMaxFrameAge) {
    metrics.stale_ages.Increment();
  } else {
    Observe(absl::ToDoubleSeconds(age), now_(), &metrics.frame_age, &metrics.recent_frame_age);
  }
}

void Metrics::OnStreamOpened(std::string_view model) { AddStreams(model, 1); }

void Metrics::OnStreamClosed(std::string_view model) { AddStreams(model, -1); }

void Metrics::AddStreams(std::string_view model, int64_t change) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  metrics.open_streams += change;
  if (metrics.streams != nullptr) metrics.streams->Set(static_cast<double>(metrics.open_streams));
}

void Metrics::OnStage(std::string_view model, Stage stage, absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  StageMetrics& metrics = StageOf(Of(model), stage);
  Observe(absl::ToDoubleSeconds(duration), now_(), &metrics.total, &metrics.recent);
}

void Metrics::OnBatch(std::string_view model, int64_t requests, int64_t points, int64_t voxels) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  const absl::Time now = now_();
  Observe(static_cast<double>(requests), now, &metrics.batch_requests, &metrics.recent_batch_requests);
  Observe(static_cast<double>(points), now, &metrics.batch_points, &metrics.recent_batch_points);
  Observe(static_cast<double>(voxels), now, &metrics.batch_voxels, &metrics.recent_batch_voxels);
}

void Metrics::OnPrediction(std::string_view model, absl::Duration predicted, absl::Duration actual) {
  if (actual <= absl::ZeroDuration()) return;  // the ratio is undefined
  const double ratio = std::abs(absl::FDivDuration(predicted - actual, actual));
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  Observe(ratio, now_(), &metrics.prediction_error, &metrics.recent_prediction_error);
}

void Metrics::OnDeviceTime(std::string_view model, absl::Duration duration) {
  if (!(duration > absl::ZeroDuration()) || duration == absl::InfiniteDuration()) return;
  absl::MutexLock lock(&mutex_);
  Of(model).device_seconds.Increment(absl::ToDoubleSeconds(duration));
  load_.AddDeviceTime(now_(), duration);
}

void Metrics::OnPoints(std::string_view model, const PointCounts& counts) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  metrics.used.Increment(static_cast<double>(counts.used));
  metrics.invalid.Increment(static_cast<double>(counts.invalid));
  metrics.out_of_range.Increment(static_cast<double>(counts.out_of_range));
  metrics.dropped_points.Increment(static_cast<double>(counts.dropped));
  metrics.unsampled.Increment(static_cast<double>(counts.unsampled));
  metrics.not_finite.Increment(static_cast<double>(counts.not_finite));
}

void Metrics::OnNotFiniteBoxes(std::string_view model, int64_t candidates) {
  absl::MutexLock lock(&mutex_);
  boxes_not_finite_total_.Add({{"model", Of(model).label}}).Increment(static_cast<double>(candidates));
}

void Metrics::OnBoxes(std::string_view model, int64_t boxes) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  if (metrics.boxes == nullptr) metrics.boxes = &boxes_total_.Add({{"model", metrics.label}});
  metrics.boxes->Increment(static_cast<double>(boxes));
}

void Metrics::OnDropped(std::string_view model, DropReason reason) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics::Dropped& dropped = Of(model).dropped[static_cast<size_t>(reason)];
  dropped.total.Increment();
  dropped.recent.Add(now_());
}

void Metrics::OnStuckBatch(std::string_view model, std::string_view device) {
  absl::MutexLock lock(&mutex_);
  stuck_batches_total_.Add({{"model", Of(model).label}, {"device", std::string(device)}}).Increment();
}

void Metrics::OnQueueDepth(std::string_view model, int64_t tasks) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  metrics.queue_tasks = tasks;
  if (metrics.queue_depth != nullptr) metrics.queue_depth->Set(static_cast<double>(tasks));
}

void Metrics::OnModelState(std::string_view model, int64_t version, bool ready) {
  const std::string name(model);
  absl::MutexLock lock(&mutex_);
  listed_versions_[name].insert(version);
  ModelMetrics& metrics = Of(model);  // creates its series at 0, so that rates see the first event
  metrics.queue_depth = &queue_depth_.Add({{"model", name}});
  metrics.queue_depth->Set(static_cast<double>(metrics.queue_tasks));
  metrics.streams = &streams_.Add({{"model", name}});
  metrics.streams->Set(static_cast<double>(metrics.open_streams));
  model_ready_.Add({{"model", name}, {"version", absl::StrCat(version)}}).Set(ready ? 1 : 0);
  PublishPlans(name);
}

void Metrics::OnModelRemoved(std::string_view model, int64_t version) {
  const std::string name(model);
  absl::MutexLock lock(&mutex_);
  if (!IsListed(model, version)) return;
  listed_versions_[name].erase(version);
  model_ready_.Remove(&model_ready_.Add({{"model", name}, {"version", absl::StrCat(version)}}));
  for (auto& [device, plans] : plans_[name]) plans.source_of_version.erase(version);
  PublishPlans(name);
  if (!listed_versions_[name].empty()) return;
  listed_versions_.erase(name);
  ModelMetrics& metrics = Of(model);
  queue_depth_.Remove(std::exchange(metrics.queue_depth, nullptr));
  streams_.Remove(std::exchange(metrics.streams, nullptr));
}

void Metrics::OnGridFallback() { grid_fallbacks_.Increment(); }

void Metrics::OnRerun() { batch_reruns_.Increment(); }

void Metrics::OnReplay() { batch_replays_.Increment(); }

void Metrics::OnGeometryFallback() { geometry_fallbacks_.Increment(); }

void Metrics::OnPlanLookup(bool found) { (found ? plan_cache_hits_ : plan_cache_misses_).Increment(); }

void Metrics::OnPlan(std::string_view model, int64_t version, std::string_view device, std::string_view source) {
  const std::string name(model);
  absl::MutexLock lock(&mutex_);
  plans_[name][std::string(device)].source_of_version[version] = std::string(source);
  PublishPlans(name);
}

void Metrics::PublishPlans(const std::string& model) {
  for (auto& [device, plans] : plans_[model]) {
    std::set<std::string> sources;
    for (const auto& [version, source] : plans.source_of_version) {
      if (IsListed(model, version)) sources.insert(source);
    }
    const auto series_of = [&, &device = device](const std::string& source) -> prometheus::Gauge& {
      return plan_info_.Add({{"model", model}, {"device", device}, {"source", source}});
    };
    for (const std::string& source : plans.published) {
      if (!sources.contains(source)) plan_info_.Remove(&series_of(source));
    }
    for (const std::string& source : sources) series_of(source).Set(1);
    plans.published = std::move(sources);
  }
}

bool Metrics::IsListed(std::string_view model, int64_t version) const {
  const auto versions = listed_versions_.find(model);
  return versions != listed_versions_.end() && versions->second.contains(version);
}

void Metrics::OnDeviceBusy(std::string_view device, std::string_view stream, absl::Duration duration) {
  device_busy_seconds_total_.Add({{"device", std::string(device)}, {"stream", std::string(stream)}})
      .Increment(absl::ToDoubleSeconds(duration));
}

void Metrics::OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) {
  device_memory_bytes_.Add({{"device", std::string(device)}, {"kind", std::string(kind)}})
      .Set(static_cast<double>(bytes));
}

void Metrics::SetHostMemory(const MemoryBudget& budget) {
  for (size_t i = 0; i < MemoryBudget::kNumUses; ++i) {
    const auto use = static_cast<MemoryBudget::Use>(i);
    memory_bytes_.Add({{"use", std::string(NameOf(use))}}).Set(static_cast<double>(budget.held(use)));
  }
  memory_limit_bytes_.Add({}).Set(static_cast<double>(budget.limit_bytes()));
}

std::string Metrics::Text() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, registry_.Collect());
  return std::move(text).str();
}

ModelTotals Metrics::TotalsOf(std::string_view model) const {
  absl::MutexLock lock(&mutex_);
  if (const auto found = models_.find(model); found != models_.end()) return found->second->Totals();
  return {};
}

ServerLoad Metrics::Load(int num_devices) const {
  absl::MutexLock lock(&mutex_);
  int64_t num_waiting = 0;
  for (const auto& [label, metrics] : models_) num_waiting += metrics->queue_tasks;
  return load_.Get(now_(), num_waiting, num_devices);
}

ModelStatistics Metrics::StatisticsOf(std::string_view model) const {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(model);
  if (found == models_.end()) return {};
  ModelStatistics statistics = found->second->Statistics(now_());
  if (const auto by_device = plans_.find(model); by_device != plans_.end()) {
    for (const auto& [device, plans] : by_device->second) {
      for (const auto& [version, source] : plans.source_of_version) {
        if (IsListed(model, version)) statistics.plans.push_back({version, device, source});
      }
    }
  }
  return statistics;
}

std::vector<DeviceStatistics> Metrics::DeviceStatisticsByName() const {
  std::map<std::string, DeviceStatistics> devices;
  for (const auto& family : device_busy_seconds_total_.Collect()) {
    for (const auto& metric : family.metric) {
      devices[LabelOf(metric, "device")].busy_seconds += metric.counter.value;
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

ModelMetrics& Metrics::Of(std::string_view model, absl::StatusCode code) {
  // NOT_FOUND for a model that was unloaded is not counted as that model's.
  const bool is_gone = code == absl::StatusCode::kNotFound && !listed_versions_.contains(model);
  return Of(is_gone ? kUnknown : model);
}

ModelMetrics& Metrics::Of(std::string_view model) {
  if (const auto found = models_.find(model); found != models_.end()) return *found->second;
  if (listed_versions_.find(model) == listed_versions_.end()) {
    if (const auto found = models_.find(kUnknown); found != models_.end()) return *found->second;
    model = kUnknown;
  }
  const std::string label(model);
  const auto points = [&](const char* fate) -> prometheus::Counter& {
    return points_total_.Add({{"model", label}, {"fate", fate}});
  };
  auto metrics = std::make_unique<ModelMetrics>(
      ModelMetrics{.label = label,
                   .frames = frames_total_.Add({{"model", label}}),
                   .used = points("used"),
                   .invalid = points("invalid"),
                   .out_of_range = points("out_of_range"),
                   .dropped_points = points("dropped"),
                   .unsampled = points("unsampled"),
                   .not_finite = points_not_finite_total_.Add({{"model", label}}),
                   .negative_ages = negative_frame_ages_total_.Add({{"model", label}}),
                   .stale_ages = stale_frame_ages_total_.Add({{"model", label}}),
                   .device_seconds = device_seconds_total_.Add({{"model", label}}),
                   .request_duration = request_duration_seconds_.Add({{"model", label}}, DurationBuckets()),
                   .refusal_duration = refusal_duration_seconds_.Add({{"model", label}}, DurationBuckets()),
                   .frame_age = frame_age_seconds_.Add({{"model", label}}, DurationBuckets()),
                   .batch_requests = batch_requests_.Add({{"model", label}}, RequestBuckets()),
                   .batch_points = batch_points_.Add({{"model", label}}, SizeBuckets()),
                   .batch_voxels = batch_voxels_.Add({{"model", label}}, SizeBuckets()),
                   .prediction_error = latency_prediction_error_ratio_.Add({{"model", label}}, ErrorRatioBuckets())});
  for (const std::string_view reason : kDropReasonNames) {
    metrics->dropped.push_back(
        {.total = frames_dropped_total_.Add({{"model", label}, {"reason", std::string(reason)}})});
  }
  return *models_.emplace(label, std::move(metrics)).first->second;
}

StageMetrics& Metrics::StageOf(ModelMetrics& metrics, Stage stage) {
  if (const auto found = metrics.stages.find(stage); found != metrics.stages.end()) return found->second;
  prometheus::Histogram& total =
      stage_duration_seconds_.Add({{"model", metrics.label}, {"stage", std::string(NameOf(stage))}}, DurationBuckets());
  return metrics.stages.emplace(stage, StageMetrics{.total = total}).first->second;
}

}  // namespace voxserve
