#include "server/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace voxserve {
namespace {

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

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

ModelTotals::Sum SumOf(const RecordedHistogram& histogram) {
  const prometheus::ClientMetric::Histogram values = histogram.Total();
  return {.count = static_cast<int64_t>(values.sample_count), .seconds = values.sample_sum};
}

}  // namespace

Metrics::ModelMetrics::ModelMetrics(prometheus::Registry* the_registry, std::string the_label)
    : registry(the_registry), label(std::move(the_label)) {
  for (const std::string_view reason : kDropReasonNames) {
    dropped.push_back({.total = dropped_total.With({label, reason})});
  }
}

std::string Metrics::Listed(absl::Span<const std::string_view> names) {
  return absl::StrJoin(names, ", ", [](std::string* out, std::string_view name) { out->append(name); });
}

void Metrics::SetBuildInfo(std::string_view version, std::string_view backend) {
  build_info_.With({version, backend}).Set(1);
}

void Metrics::OnRequest(std::string_view model, int64_t version, absl::StatusCode code, absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model, code);
  // An answer names its version, which may be unloaded by now. A refusal repeats the version that the client asked for.
  const bool is_version_known =
      IsListed(model, version) || (code == absl::StatusCode::kOk && metrics.label != kUnknown);
  const std::string version_label = is_version_known ? absl::StrCat(version) : std::string(kUnknown);
  requests_total_.With({metrics.label, version_label, CodeName(code)}).Increment();
  const absl::Time now = now_();
  if (code != absl::StatusCode::kOk) {
    ++metrics.failures[CodeName(code)];
    if (IsServersError(code)) load_.AddError(now);
    return;
  }
  load_.AddAnswer(now);
  metrics.frames.Increment();
  ++metrics.recent_frames.At(now);
  metrics.last_success = now;
  metrics.request_duration.Observe(absl::ToDoubleSeconds(duration), now);
}

void Metrics::OnRefusal(std::string_view model, absl::StatusCode code, absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model, code);
  metrics.refusal_duration.Observe(absl::ToDoubleSeconds(duration), now_());
}

void Metrics::OnCallEndedEarly(std::string_view reason) { calls_ended_early_total_.With({reason}).Increment(); }

void Metrics::OnUnusedConnection(std::string_view reason) { connections_unused_total_.With({reason}).Increment(); }

void Metrics::OnConnections(int64_t open) { connections_.With({}).Set(static_cast<double>(open)); }

void Metrics::OnFrameAge(std::string_view model, absl::Duration age) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  if (age < absl::ZeroDuration()) {
    metrics.negative_ages.Increment();
  } else if (age > kMaxFrameAge) {
    metrics.stale_ages.Increment();
  } else {
    metrics.frame_age.Observe(absl::ToDoubleSeconds(age), now_());
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
  ModelMetrics& metrics = Of(model);
  auto found = metrics.stages.find(stage);
  if (found == metrics.stages.end()) {
    found = metrics.stages.emplace(stage, metrics.stage_durations.With({metrics.label, NameOf(stage)})).first;
  }
  found->second.Observe(absl::ToDoubleSeconds(duration), now_());
}

void Metrics::OnBatch(std::string_view model, int64_t requests, int64_t points, int64_t voxels) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  const absl::Time now = now_();
  metrics.batch_requests.Observe(static_cast<double>(requests), now);
  metrics.batch_points.Observe(static_cast<double>(points), now);
  metrics.batch_voxels.Observe(static_cast<double>(voxels), now);
}

void Metrics::OnPrediction(std::string_view model, absl::Duration predicted, absl::Duration actual) {
  if (actual <= absl::ZeroDuration()) return;  // the ratio is undefined
  const double ratio = std::abs(absl::FDivDuration(predicted - actual, actual));
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  metrics.prediction_error.Observe(ratio, now_());
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

void Metrics::OnFeatureWarning(std::string_view model, std::string_view feature) {
  absl::MutexLock lock(&mutex_);
  feature_warnings_total_.With({Of(model).label, std::string(feature)}).Increment();
}

void Metrics::OnNotFiniteBoxes(std::string_view model, int64_t candidates) {
  absl::MutexLock lock(&mutex_);
  boxes_not_finite_total_.With({Of(model).label}).Increment(static_cast<double>(candidates));
}

void Metrics::OnBoxes(std::string_view model, int64_t boxes) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics& metrics = Of(model);
  if (metrics.boxes == nullptr) metrics.boxes = &metrics.boxes_total.With({metrics.label});
  metrics.boxes->Increment(static_cast<double>(boxes));
}

void Metrics::OnDropped(std::string_view model, DropReason reason) {
  absl::MutexLock lock(&mutex_);
  ModelMetrics::Dropped& dropped = Of(model).dropped[static_cast<size_t>(reason)];
  dropped.total.Increment();
  ++dropped.recent.At(now_());
}

void Metrics::OnStuckBatch(std::string_view model, std::string_view device) {
  absl::MutexLock lock(&mutex_);
  stuck_batches_total_.With({Of(model).label, device}).Increment();
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
  metrics.queue_depth = &metrics.queue_depths.With({name});
  metrics.queue_depth->Set(static_cast<double>(metrics.queue_tasks));
  metrics.streams = &metrics.stream_counts.With({name});
  metrics.streams->Set(static_cast<double>(metrics.open_streams));
  model_ready_.With({name, absl::StrCat(version)}).Set(ready ? 1 : 0);
  PublishPlans(name);
}

void Metrics::OnModelRemoved(std::string_view model, int64_t version) {
  const std::string name(model);
  absl::MutexLock lock(&mutex_);
  if (!IsListed(model, version)) return;
  listed_versions_[name].erase(version);
  model_ready_.Remove(&model_ready_.With({name, absl::StrCat(version)}));
  for (auto& [device, plans] : plans_[name]) plans.source_of_version.erase(version);
  PublishPlans(name);
  if (!listed_versions_[name].empty()) return;
  listed_versions_.erase(name);
  ModelMetrics& metrics = Of(model);
  metrics.queue_depths.Remove(std::exchange(metrics.queue_depth, nullptr));
  metrics.stream_counts.Remove(std::exchange(metrics.streams, nullptr));
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
      return plan_info_.With({model, device, source});
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
  device_busy_seconds_total_.With({device, stream}).Increment(absl::ToDoubleSeconds(duration));
}

void Metrics::OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) {
  device_memory_bytes_.With({device, kind}).Set(static_cast<double>(bytes));
}

void Metrics::SetHostMemory(const MemoryBudget& budget) {
  for (size_t i = 0; i < MemoryBudget::kNumUses; ++i) {
    const auto use = static_cast<MemoryBudget::Use>(i);
    memory_bytes_.With({NameOf(use)}).Set(static_cast<double>(budget.held(use)));
  }
  memory_limit_bytes_.With({}).Set(static_cast<double>(budget.limit_bytes()));
}

void Metrics::SetCertificateEnd(std::string_view flag, absl::Time end) {
  if (end == absl::InfiniteFuture() || end == absl::InfinitePast()) return;
  certificate_ends_.With({flag}).Set(static_cast<double>(absl::ToUnixSeconds(end)));
}

std::string Metrics::Text() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, registry_.Collect());
  return std::move(text).str();
}

ModelTotals Metrics::TotalsOf(std::string_view model) const {
  absl::MutexLock lock(&mutex_);
  if (const auto found = models_.find(model); found != models_.end()) return found->second.Totals();
  return {};
}

ServerLoad Metrics::Load(int num_devices) const {
  absl::MutexLock lock(&mutex_);
  int64_t num_waiting = 0;
  for (const auto& [label, metrics] : models_) num_waiting += metrics.queue_tasks;
  return load_.Get(now_(), num_waiting, num_devices);
}

ModelStatistics Metrics::StatisticsOf(std::string_view model) const {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(model);
  if (found == models_.end()) return {};
  ModelStatistics statistics = found->second.Statistics(now_());
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

Metrics::ModelMetrics& Metrics::Of(std::string_view model, absl::StatusCode code) {
  // NOT_FOUND for a model that was unloaded is not counted as that model's.
  const bool is_gone = code == absl::StatusCode::kNotFound && !listed_versions_.contains(model);
  return Of(is_gone ? kUnknown : model);
}

Metrics::ModelMetrics& Metrics::Of(std::string_view model) {
  if (const auto found = models_.find(model); found != models_.end()) return found->second;
  const std::string label(listed_versions_.contains(model) ? model : kUnknown);
  return models_.try_emplace(label, &registry_, label).first->second;
}

ModelStatistics Metrics::ModelMetrics::Statistics(absl::Time now) const {
  ModelStatistics statistics;
  statistics.frames = std::llround(frames.Value());
  if (boxes != nullptr) statistics.boxes = std::llround(boxes->Value());
  statistics.queue_depth = queue_tasks;
  statistics.streams = open_streams;
  statistics.frames_history = recent_frames.History(now);
  statistics.latency_seconds = request_duration.Recent(now);
  statistics.refusal_seconds = refusal_duration.Recent(now);
  for (const auto& [stage, duration] : stages) {
    const Distribution recent = duration.Recent(now);
    if (recent.count > 0) statistics.stage_seconds.emplace_back(stage, recent);
  }
  statistics.frame_age_seconds = frame_age.Recent(now);
  statistics.negative_ages = std::llround(negative_ages.Value());
  statistics.batch_requests = batch_requests.Recent(now);
  statistics.batch_points = batch_points.Recent(now);
  statistics.batch_voxels = batch_voxels.Recent(now);
  statistics.prediction_error = prediction_error.Recent(now);
  statistics.failures.assign(failures.begin(), failures.end());
  for (size_t i = 0; i < dropped.size(); ++i) {
    const auto total = std::llround(dropped[i].total.Value());
    if (total == 0) continue;
    const std::vector<int64_t> history = dropped[i].recent.History(now);
    statistics.dropped.push_back({.reason = static_cast<DropReason>(i),
                                  .total = total,
                                  .last_minute = std::accumulate(history.begin(), history.end(), int64_t{0})});
  }
  return statistics;
}

ModelTotals Metrics::ModelMetrics::Totals() const {
  ModelTotals totals{.successes = SumOf(request_duration),
                     .refusals = SumOf(refusal_duration),
                     .batches = SumOf(batch_requests).count,
                     .last_success = last_success};
  for (const auto& [code, count] : failures) totals.failures += count;
  for (const auto& [stage, duration] : stages) totals.stages[stage] = SumOf(duration);
  return totals;
}

}  // namespace voxserve
