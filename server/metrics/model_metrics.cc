#include "server/metrics/model_metrics.h"

#include <cmath>
#include <numeric>

namespace voxserve {
namespace {

ModelTotals::Sum SumOf(const prometheus::Histogram& histogram) {
  const prometheus::ClientMetric::Histogram values = histogram.Collect().histogram;
  return {.count = static_cast<int64_t>(values.sample_count), .seconds = values.sample_sum};
}

}  // namespace

// Bucket bounds in seconds, from 0.1 ms on, six to seven per decade. A percentile that is computed from these buckets
// is off by about a tenth at most.
const prometheus::Histogram::BucketBoundaries& DurationBuckets() {
  static const auto* buckets = new prometheus::Histogram::BucketBoundaries{
      0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02,
      0.03,   0.05,    0.075,  0.1,    0.15,   0.2,     0.3,   0.5,    0.75,  1,     1.5,   2,      3,    5,     10};
  return *buckets;
}

const prometheus::Histogram::BucketBoundaries& RequestBuckets() {
  static const auto* buckets = new prometheus::Histogram::BucketBoundaries{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};
  return *buckets;
}

const prometheus::Histogram::BucketBoundaries& SizeBuckets() {
  static const auto* buckets = new prometheus::Histogram::BucketBoundaries{
      0, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 5e4, 7.5e4, 1e5, 1.5e5, 2e5, 3e5, 4e5, 5e5, 6e5, 8e5, 1e6, 2e6, 5e6, 1e7};
  return *buckets;
}

const prometheus::Histogram::BucketBoundaries& ErrorRatioBuckets() {
  static const auto* buckets = new prometheus::Histogram::BucketBoundaries{
      0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10};
  return *buckets;
}

ModelStatistics ModelMetrics::Statistics(absl::Time now) const {
  ModelStatistics statistics;
  statistics.frames = std::llround(frames.Value());
  if (boxes != nullptr) statistics.boxes = std::llround(boxes->Value());
  statistics.queue_depth = queue_tasks;
  statistics.streams = open_streams;
  statistics.frames_history = recent_frames.History(now);
  statistics.latency_seconds = recent_latency.Summarize(now);
  statistics.refusal_seconds = recent_refusals.Summarize(now);
  for (const auto& [stage, metrics] : stages) {
    const Distribution recent = metrics.recent.Summarize(now);
    if (recent.count > 0) statistics.stage_seconds.emplace_back(stage, recent);
  }
  statistics.frame_age_seconds = recent_frame_age.Summarize(now);
  statistics.negative_ages = std::llround(negative_ages.Value());
  statistics.batch_requests = recent_batch_requests.Summarize(now);
  statistics.batch_points = recent_batch_points.Summarize(now);
  statistics.batch_voxels = recent_batch_voxels.Summarize(now);
  statistics.prediction_error = recent_prediction_error.Summarize(now);
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

ModelTotals ModelMetrics::Totals() const {
  ModelTotals totals{.successes = SumOf(request_duration),
                     .refusals = SumOf(refusal_duration),
                     .batches = SumOf(batch_requests).count,
                     .last_success = last_success};
  for (const auto& [code, count] : failures) totals.failures += count;
  for (const auto& [stage, metrics] : stages) totals.stages[stage] = SumOf(metrics.total);
  return totals;
}

}  // namespace voxserve
