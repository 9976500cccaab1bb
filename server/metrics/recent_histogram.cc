#include "server/metrics/recent_histogram.h"

#include <algorithm>

namespace voxserve {

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

void RecentHistogram::Observe(double value, absl::Time now) {
  Observations& observations = window_.At(now);
  observations.sum += value;
  observations.least = std::min(observations.least, value);
  observations.most = std::max(observations.most, value);
  const auto bucket = std::lower_bound(boundaries_->begin(), boundaries_->end(), value);
  ++observations.counts[bucket - boundaries_->begin()];
}

Distribution RecentHistogram::Summarize(absl::Time now) const {
  std::vector<uint64_t> counts(boundaries_->size() + 1, 0);
  Distribution distribution;
  double sum = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  window_.ForEach(now, [&](const Observations& observations) {
    sum += observations.sum;
    least = std::min(least, observations.least);
    most = std::max(most, observations.most);
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] += observations.counts[i];
      distribution.count += static_cast<int64_t>(observations.counts[i]);
    }
  });
  if (distribution.count == 0) return distribution;
  distribution.mean = sum / static_cast<double>(distribution.count);
  const auto quantile = [&](double q) { return std::clamp(HistogramQuantile(*boundaries_, counts, q), least, most); };
  distribution.p50 = quantile(0.50);
  distribution.p95 = quantile(0.95);
  distribution.p99 = quantile(0.99);
  return distribution;
}

}  // namespace voxserve
