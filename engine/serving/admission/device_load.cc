#include "engine/serving/admission/device_load.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace voxserve {

double DeviceLoad::VirtualTime(absl::Time now) const {
  if (running_.empty() || now <= updated_) return virtual_time_;
  return virtual_time_ + absl::ToDoubleSeconds(now - updated_) / num_running();
}

void DeviceLoad::Advance(absl::Time now) {
  virtual_time_ = VirtualTime(now);
  updated_ = std::max(updated_, now);
}

void DeviceLoad::Start(uint64_t batch, absl::Duration expected, absl::Time now) {
  Advance(now);
  running_[batch] = {.virtual_start = virtual_time_, .expected = absl::ToDoubleSeconds(expected)};
}

absl::Duration DeviceLoad::Finish(uint64_t batch, absl::Time now) {
  Advance(now);
  const auto it = running_.find(batch);
  if (it == running_.end()) return absl::ZeroDuration();
  const double charged = virtual_time_ - it->second.virtual_start;
  running_.erase(it);
  return absl::Seconds(charged);
}

double DeviceLoad::RemainingOf(const Running& batch, double virtual_now) const {
  return std::abs(batch.expected - (virtual_now - batch.virtual_start));
}

absl::Duration DeviceLoad::Remaining(absl::Time now) const {
  const double virtual_now = VirtualTime(now);
  double remaining = 0;
  for (const auto& [id, batch] : running_) remaining += RemainingOf(batch, virtual_now);
  return absl::Seconds(remaining);
}

absl::Duration DeviceLoad::UntilFree(absl::Time now) const {
  if (is_idle()) return absl::ZeroDuration();
  const double virtual_now = VirtualTime(now);
  double least = absl::ToDoubleSeconds(Remaining(now));
  // If a batch ends first, all others still run until then, so it takes num_running times its remaining device time.
  for (const auto& [id, batch] : running_) least = std::min(least, RemainingOf(batch, virtual_now) * num_running());
  return absl::Seconds(least);
}

absl::Duration UntilStarted(absl::Span<const absl::Duration> remaining, absl::Span<const absl::Duration> work) {
  std::vector<std::pair<double, double>> devices;  // seconds: remaining, work
  for (size_t i = 0; i < remaining.size(); ++i) {
    devices.emplace_back(absl::ToDoubleSeconds(remaining[i]), absl::ToDoubleSeconds(work[i]));
  }
  std::sort(devices.begin(), devices.end());
  // Finds the least t for which the sum over the devices of max(0, t - remaining) / work is 1, adding device by device.
  double speed = 0, offset = 0, started = 0;
  for (size_t i = 0; i < devices.size(); ++i) {
    const auto& [free, seconds] = devices[i];
    if (i > 0 && free >= started) break;
    if (seconds <= 0) return absl::Seconds(free);
    speed += 1 / seconds;
    offset += free / seconds;
    started = (1 + offset) / speed;
  }
  return absl::Seconds(started);
}

}  // namespace voxserve
