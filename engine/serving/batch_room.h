#pragma once

// How many points a batch may have to fit a device's memory, learnt from batches that did not. Of one model version on
// one device.
//
// Thread-safe.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace voxserve {

class BatchRoom {
 public:
  // Single requests are not held to it.
  int64_t max_points() const { return max_points_; }

  // A batch of several requests had no room: half as many points might have.
  void DidNotFit(int64_t points) { max_points_ = std::max<int64_t>(points / 2, 1); }
  // Memory that others had may be free again: batches as large as may be try for a little more.
  void Fit(int64_t points) {
    const int64_t most = max_points_;
    if (most != kNoLimit && points > most - most / kGrowth) max_points_ = most + most / kGrowth;
  }

 private:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kGrowth = 16;

  std::atomic<int64_t> max_points_{kNoLimit};
};

}  // namespace voxserve
