#include "server/metrics/load_meter.h"

#include <algorithm>

namespace voxserve {

LoadMeter::Sums& LoadMeter::At(absl::Time now) {
  first_ = std::min(first_, now);
  return window_.At(now);
}

ServerLoad LoadMeter::Get(absl::Time now, int64_t num_waiting, int num_devices) const {
  if (first_ == absl::InfiniteFuture()) return {};
  Sums sum;
  window_.ForEach(now, [&](const Sums& slot) {
    sum.device_time += slot.device_time;
    sum.answers += slot.answers;
    sum.errors += slot.errors;
  });
  const absl::Time oldest = window_.SlotBegin(now) - (kNumSlots - 1) * kSlotTime;
  const absl::Time begin = std::max(oldest, window_.SlotBegin(first_));
  // The window is at least a second, since one event in a much shorter time would give a far too high rate.
  const double seconds = absl::ToDoubleSeconds(std::max(now - begin, absl::Seconds(1)));
  const double busy_seconds = absl::ToDoubleSeconds(sum.device_time);
  const double backlog_seconds =
      sum.answers == 0 ? 0 : busy_seconds / static_cast<double>(sum.answers) * static_cast<double>(num_waiting);
  return {.utilization = (busy_seconds + backlog_seconds) / (seconds * num_devices),
          .answers_per_second = static_cast<double>(sum.answers) / seconds,
          .errors_per_second = static_cast<double>(sum.errors) / seconds};
}

}  // namespace voxserve
