#pragma once

// RecentRate counts the events of the last minute, with one counter per second. Not thread-safe: its owner locks.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace voxserve {

class RecentRate {
 public:
  static constexpr int kSeconds = 60;

  void Add(absl::Time now);

  // Returns the events in each of the last kSeconds whole seconds before `now`, oldest first. The current second is not
  // complete and is left out.
  std::vector<int64_t> History(absl::Time now) const;

 private:
  // There is one counter more than the history has seconds, for the current second.
  struct Second {
    int64_t unix_seconds = -1;
    int64_t events = 0;
  };
  std::array<Second, kSeconds + 1> seconds_;
};

}  // namespace voxserve
