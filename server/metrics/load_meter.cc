#include "server/metrics/load_meter.h"

#include <algorithm>

namespace voxserve {

void LoadMeter::AddDeviceTime(absl::Time now, absl::Duration duration) { SlotAt(now).device_time += duration; }

void LoadMeter::AddAnswer(absl::Time now) { ++SlotAt(now).answers; }

void LoadMeter::AddError(absl::Time now) { ++SlotAt(now).errors; }

LoadMeter::Slot& LoadMeter::SlotAt(absl::Time now) {
  const int64_t number = (now - absl::UnixEpoch()) / kSlotTime;
  if (first_number_ < 0) first_number_ = number;
  Slot& slot = slots_[static_cast<size_t>(number % kNumSlots)];
  if (slot.number != number) slot = {.number = number, .device_time = {}, .answers = 0, .errors = 0};
  return slot;
}

ServerLoad LoadMeter::Get(absl::Time now, int64_t num_waiting, int num_devices) const {
  const int64_t last = (now - absl::UnixEpoch()) / kSlotTime;
  const int64_t first = std::max(last - kNumSlots + 1, first_number_);
  if (first_number_ < 0) return {};
  Slot sum;
  for (const Slot& slot : slots_) {
    if (slot.number < first || slot.number > last) continue;
    sum.device_time += slot.device_time;
    sum.answers += slot.answers;
    sum.errors += slot.errors;
  }
  // The window is at least a second, since one event in a much shorter time would give a far too high rate.
  const absl::Duration window = std::max(now - (absl::UnixEpoch() + first * kSlotTime), absl::Seconds(1));
  const double seconds = absl::ToDoubleSeconds(window);
  const double busy_seconds = absl::ToDoubleSeconds(sum.device_time);
  const double backlog_seconds =
      sum.answers == 0 ? 0 : busy_seconds / static_cast<double>(sum.answers) * static_cast<double>(num_waiting);
  return {.utilization = (busy_seconds + backlog_seconds) / (seconds * num_devices),
          .answers_per_second = static_cast<double>(sum.answers) / seconds,
          .errors_per_second = static_cast<double>(sum.errors) / seconds};
}

}  // namespace voxserve
