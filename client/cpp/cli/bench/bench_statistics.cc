#include "client/cpp/cli/bench/bench_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace voxserve::client {
namespace {

bool AreClose(const std::array<double, kStableWindows>& values, double percent) {
  double mean = 0;
  for (const double value : values) mean += value / kStableWindows;
  return std::all_of(values.begin(), values.end(),
                     [&](double value) { return std::abs(value - mean) <= mean * percent / 100; });
}

}  // namespace

ArrivalSchedule ArrivalSchedule::Constant(double requests_per_second) { return {requests_per_second, false, 0}; }

ArrivalSchedule ArrivalSchedule::Poisson(double requests_per_second, uint64_t seed) {
  return {requests_per_second, true, seed};
}

absl::Duration ArrivalSchedule::Next() {
  if (!is_poisson_) return absl::Seconds(static_cast<double>(num_requests_++) / rate_);
  const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;  // [0, 1)
  seconds_ -= std::log1p(-uniform) / rate_;
  return absl::Seconds(seconds_);
}

absl::Duration Percentile(const std::vector<absl::Duration>& sorted, double percent) {
  if (sorted.empty()) return absl::ZeroDuration();
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()) - 1e-9);
  const size_t index = rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

LatencySummary SummariseLatencies(std::vector<absl::Duration> latencies) {
  LatencySummary summary;
  if (latencies.empty()) return summary;
  std::sort(latencies.begin(), latencies.end());
  absl::Duration sum;
  for (const absl::Duration latency : latencies) sum += latency;
  summary.count = latencies.size();
  summary.mean = sum / static_cast<int64_t>(latencies.size());
  summary.p50 = Percentile(latencies, 50);
  summary.p90 = Percentile(latencies, 90);
  summary.p99 = Percentile(latencies, 99);
  summary.p999 = Percentile(latencies, 99.9);
  summary.max = latencies.back();
  return summary;
}

bool IsStable(const std::vector<WindowSummary>& windows, double percent) {
  if (windows.size() < kStableWindows) return false;
  std::array<double, kStableWindows> rates, p99s;
  for (size_t i = 0; i < kStableWindows; ++i) {
    const WindowSummary& window = windows[windows.size() - kStableWindows + i];
    if (window.scans_per_second <= 0) return false;
    rates[i] = window.scans_per_second;
    p99s[i] = absl::ToDoubleSeconds(window.p99);
  }
  return AreClose(rates, percent) && AreClose(p99s, percent);
}

}  // namespace voxserve::client
