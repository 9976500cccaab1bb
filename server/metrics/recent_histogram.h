#pragma once

// How observations of the last minute are distributed: a histogram that forgets. A page shows what is, not what has
// been since the process started. Not thread-safe: its owner locks.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace voxserve {

// The value below which the share q of the observations lies, as Prometheus' histogram_quantile computes it: linear
// within a bucket; the last boundary where it lies beyond it; 0 without observations. counts has one more entry (+Inf)
// than boundaries and is not cumulative.
double HistogramQuantile(const std::vector<double>& boundaries, const std::vector<uint64_t>& counts, double q);

// In the unit of what was observed; all 0 where there was nothing.
struct Distribution {
  int64_t count = 0;
  double mean = 0;
  double p50 = 0;  // the quantiles are interpolated within a bucket
  double p95 = 0;
  double p99 = 0;
};

class RecentHistogram {
 public:
  // Forgotten in steps: a summary covers the last 60 to 70 seconds.
  static constexpr int64_t kSlotSeconds = 10;
  static constexpr int64_t kNumSlots = 7;  // one is under way

  // boundaries: the buckets' upper ends, ascending; outlives this.
  explicit RecentHistogram(const std::vector<double>* boundaries) : boundaries_(boundaries) {}

  void Observe(double value, absl::Time now);
  Distribution Summarize(absl::Time now) const;

 private:
  struct Slot {
    int64_t index = -1;  // of its time since the epoch, in slots
    double sum = 0;
    std::vector<uint64_t> counts;  // by bucket, the last one beyond the boundaries
  };

  const std::vector<double>* boundaries_;
  std::array<Slot, kNumSlots> slots_;
};

}  // namespace voxserve
