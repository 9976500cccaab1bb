#pragma once

// Defines the percentiles that all benchmarks here report.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace voxserve::bench {

// Returns the smallest value v such that more than `share` of the values are at most v, so 0.5 gives the upper median.
// If share is 1, returns the largest value. `values` must not be empty.
inline double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

}  // namespace voxserve::bench
