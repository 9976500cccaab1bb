#pragma once

// RecentHistogram is a histogram of the last minute's observations, for the status page, which shows the present state.
// Not thread-safe: its owner locks.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "server/metrics/sliding_window.h"

namespace voxserve {

// Returns the quantile q (0 to 1) of the observations, as Prometheus' histogram_quantile computes it, by linear
// interpolation within a bucket. Returns the last boundary if the quantile is beyond it, and 0 without observations.
// boundaries: the buckets' upper ends, ascending. counts: the observations in each bucket, not cumulative; one entry
// more than boundaries, for the bucket that ends at +Inf.
double HistogramQuantile(const std::vector<double>& boundaries, const std::vector<uint64_t>& counts, double q);

// A summary of observations, in their unit; all values are 0 without observations.
struct Distribution {
  int64_t count = 0;
  double mean = 0;
  double p50 = 0;  // the quantiles are interpolated within a bucket, and lie between the least and the largest value
  double p95 = 0;
  double p99 = 0;
};

class RecentHistogram {
 public:
  // boundaries: the buckets' upper ends, ascending. They must outlive the histogram.
  explicit RecentHistogram(const std::vector<double>* boundaries)
      : boundaries_(boundaries),
        window_(absl::Seconds(10), {.counts = std::vector<uint64_t>(boundaries->size() + 1)}) {}

  void Observe(double value, absl::Time now);
  // Summarizes the last 60 to 70 seconds: observations are forgotten in steps of 10 s.
  Distribution Summarize(absl::Time now) const;

 private:
  struct Observations {
    double sum = 0;
    double least = std::numeric_limits<double>::infinity();
    double most = -std::numeric_limits<double>::infinity();
    std::vector<uint64_t> counts = {};  // by bucket; the last one counts values above all boundaries
  };

  const std::vector<double>* boundaries_;
  SlidingWindow<Observations, 7> window_;
};

}  // namespace voxserve
