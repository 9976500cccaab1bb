#pragma once

// The percentiles of measured times, as every benchmark here reports them.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace voxserve::bench {

// The smallest value that more than `share` of the values do not pass, so 0.5 is the upper median; the largest value
// where share is 1. `values` has one value or more.
inline double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

}  // namespace voxserve::bench
