#pragma once

// The arithmetic of `voxserve-client bench`: when requests are due, percentiles, and whether a server has settled.

#include <cstdint>
#include <random>
#include <vector>

#include "absl/time/time.h"

namespace voxserve::client {

// When the requests of an open loop are due.
class ArrivalSchedule {
 public:
  // requests_per_second > 0; a seed gives the same Poisson process everywhere.
  static ArrivalSchedule Constant(double requests_per_second);
  static ArrivalSchedule Poisson(double requests_per_second, uint64_t seed);

  // Of the next request, from the start: never before the last one. A constant schedule starts with 0.
  absl::Duration Next();

 private:
  ArrivalSchedule(double rate, bool is_poisson, uint64_t seed) : rate_(rate), is_poisson_(is_poisson), random_(seed) {}

  const double rate_;
  const bool is_poisson_;
  std::mt19937_64 random_;
  uint64_t num_requests_ = 0;
  double seconds_ = 0;
};

// The smallest of the values that is no smaller than `percent` of them (nearest rank); 0 where there are none.
absl::Duration Percentile(const std::vector<absl::Duration>& sorted, double percent);

struct LatencySummary {
  uint64_t count = 0;
  absl::Duration mean, p50, p90, p99, p999, max;  // 0 where there are none
};
LatencySummary SummariseLatencies(std::vector<absl::Duration> latencies);

struct WindowSummary {
  double scans_per_second = 0;  // answered OK
  absl::Duration p99;           // of these
};

inline constexpr size_t kStableWindows = 3;

// Whether throughput and p99 of each of the last kStableWindows are within `percent` of their means. Windows without an
// answer are never stable.
bool IsStable(const std::vector<WindowSummary>& windows, double percent);

}  // namespace voxserve::client
