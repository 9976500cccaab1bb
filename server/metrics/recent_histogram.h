#pragma once

// A histogram of the last minute's observations, for the status page, which shows the present state. Not thread-safe:
// its owner locks.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace voxserve {

// Returns the quantile q of the observations, as Prometheus' histogram_quantile computes it: linear within a bucket,
// the last boundary if it is beyond that, 0 without observations. counts has one entry more (+Inf) than boundaries and
// is not cumulative.
double HistogramQuantile(const std::vector<double>& boundaries, const std::vector<uint64_t>& counts, double q);

// In the unit of the observations; all 0 without observations.
struct Distribution {
  int64_t count = 0;
  double mean = 0;
  double p50 = 0;  // the quantiles are interpolated within a bucket
  double p95 = 0;
  double p99 = 0;
};

class RecentHistogram {
 public:
  // Observations are forgotten in steps: a summary covers the last 60 to 70 seconds.
  static constexpr int64_t kSlotSeconds = 10;
  static constexpr int64_t kNumSlots = 7;  // including the current one

  // boundaries: the buckets' upper ends, ascending; they must outlive this.
  explicit RecentHistogram(const std::vector<double>* boundaries) : boundaries_(boundaries) {}

  void Observe(double value, absl::Time now);
  Distribution Summarize(absl::Time now) const;

 private:
  struct Slot {
    int64_t index = -1;  // its start since the epoch, in slots
    double sum = 0;
    std::vector<uint64_t> counts;  // by bucket; the last one counts values above all boundaries
  };

  const std::vector<double>* boundaries_;
  std::array<Slot, kNumSlots> slots_;
};

}  // namespace voxserve
