#pragma once

// This header has the computations of `voxserve-client bench`: when requests are due, percentiles of latencies, and
// whether a server's results are stable.

#include <cstdint>
#include <random>
#include <vector>

#include "absl/time/time.h"

namespace voxserve::client {

// ArrivalSchedule yields the times at which the requests of an open loop are due.
class ArrivalSchedule {
 public:
  // requests_per_second must be positive. A seed gives the same Poisson process on every machine.
  static ArrivalSchedule Constant(double requests_per_second);
  static ArrivalSchedule Poisson(double requests_per_second, uint64_t seed);

  // Returns the time of the next request since the start; times never decrease. A constant schedule begins with 0.
  absl::Duration Next();

 private:
  ArrivalSchedule(double rate, bool is_poisson, uint64_t seed) : rate_(rate), is_poisson_(is_poisson), random_(seed) {}

  const double rate_;
  const bool is_poisson_;
  std::mt19937_64 random_;
  uint64_t num_requests_ = 0;
  double seconds_ = 0;
};

// Returns the smallest value that is at least as large as `percent` % of the values (nearest rank); 0 without values.
// sorted: the values, ascending.
absl::Duration Percentile(const std::vector<absl::Duration>& sorted, double percent);

struct LatencySummary {
  uint64_t count = 0;
  absl::Duration mean, p50, p90, p99, p999, max;  // 0 without values
};
LatencySummary SummariseLatencies(std::vector<absl::Duration> latencies);

struct WindowSummary {
  double scans_per_second = 0;  // answered OK
  absl::Duration p99;           // latency of the requests answered OK
};

inline constexpr size_t kStableWindows = 3;

// Returns true if, in each of the last kStableWindows windows, throughput and p99 differ by at most `percent` % from
// their means over these windows. Returns false if a window has no answer.
bool IsStable(const std::vector<WindowSummary>& windows, double percent);

}  // namespace voxserve::client
