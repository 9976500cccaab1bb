#include "server/metrics/recent_histogram.h"

#include <algorithm>

namespace voxserve {
namespace {

int64_t SlotIndex(absl::Time now) { return absl::ToUnixSeconds(now) / RecentHistogram::kSlotSeconds; }

}  // namespace

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
  const int64_t index = SlotIndex(now);
  Slot& slot = slots_[index % kNumSlots];
  if (slot.index != index) {
    slot.index = index;
    slot.sum = 0;
    slot.counts.assign(boundaries_->size() + 1, 0);
  }
  slot.sum += value;
  const auto bucket = std::lower_bound(boundaries_->begin(), boundaries_->end(), value);
  ++slot.counts[bucket - boundaries_->begin()];
}

Distribution RecentHistogram::Summarize(absl::Time now) const {
  const int64_t newest = SlotIndex(now);
  std::vector<uint64_t> counts(boundaries_->size() + 1, 0);
  Distribution distribution;
  double sum = 0;
  for (const Slot& slot : slots_) {
    if (slot.index < 0 || slot.index <= newest - kNumSlots) continue;
    sum += slot.sum;
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] += slot.counts[i];
      distribution.count += static_cast<int64_t>(slot.counts[i]);
    }
  }
  if (distribution.count == 0) return distribution;
  distribution.mean = sum / static_cast<double>(distribution.count);
  distribution.p50 = HistogramQuantile(*boundaries_, counts, 0.50);
  distribution.p95 = HistogramQuantile(*boundaries_, counts, 0.95);
  distribution.p99 = HistogramQuantile(*boundaries_, counts, 0.99);
  return distribution;
}

}  // namespace voxserve
