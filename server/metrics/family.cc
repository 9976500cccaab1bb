#include "server/metrics/family.h"

#include <algorithm>
#include <cmath>

namespace voxserve {

void RecordedHistogram::Observe(double value, absl::Time now) {
  if (!std::isfinite(value)) return;
  value = std::max(value, 0.0);
  series_->Observe(value);
  recent_.Observe(value, now);
}

// Bucket bounds in seconds, from 0.1 ms on, six to seven per decade. A percentile that is computed from these buckets
// is off by about a tenth at most.
const std::vector<double>* DurationBuckets() {
  static const auto* const buckets = new std::vector<double>{
      0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02,
      0.03,   0.05,    0.075,  0.1,    0.15,   0.2,     0.3,   0.5,    0.75,  1,     1.5,   2,      3,    5,     10};
  return buckets;
}

const std::vector<double>* RequestBuckets() {
  static const auto* const buckets = new std::vector<double>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};
  return buckets;
}

const std::vector<double>* SizeBuckets() {
  static const auto* const buckets = new std::vector<double>{0,   1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 5e4, 7.5e4, 1e5, 1.5e5,
                                                             2e5, 3e5, 4e5, 5e5, 6e5, 8e5, 1e6, 2e6, 5e6,   1e7};
  return buckets;
}

const std::vector<double>* ErrorRatioBuckets() {
  static const auto* const buckets =
      new std::vector<double>{0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10};
  return buckets;
}

}  // namespace voxserve
