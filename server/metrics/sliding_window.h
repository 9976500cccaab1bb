#pragma once

// SlidingWindow keeps one Value for each slot of the time that has just passed: kNumSlots slots, including the one that
// `now` lies in. A slot begins at a multiple of the slot's time since the Unix epoch. The current slot is not over yet,
// so the window covers kNumSlots - 1 whole slots and a part of another. Not thread-safe: its owner locks.

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace voxserve {

template <typename Value, int64_t kNumSlots>
class SlidingWindow {
 public:
  // empty: the value of a slot in which nothing has happened.
  explicit SlidingWindow(absl::Duration slot_time, Value empty = Value())
      : slot_time_(slot_time), empty_(std::move(empty)) {}

  // Returns the value of the slot that `now` lies in, for the caller to change.
  Value& At(absl::Time now) {
    const int64_t number = NumberOf(now);
    Slot& slot = slots_[static_cast<size_t>(number % kNumSlots)];
    if (slot.number != number) slot = {.number = number, .value = empty_};
    return slot.value;
  }

  // Calls visit(value) for every slot of the window in which something has happened, in any order.
  template <typename Visit>
  void ForEach(absl::Time now, Visit visit) const {
    const int64_t last = NumberOf(now);
    for (const Slot& slot : slots_) {
      if (slot.number >= 0 && slot.number > last - kNumSlots && slot.number <= last) visit(slot.value);
    }
  }

  // Returns the values of the kNumSlots - 1 slots that are over, oldest first.
  std::vector<Value> History(absl::Time now) const {
    const int64_t current = NumberOf(now);
    std::vector<Value> history;
    for (int64_t number = current - kNumSlots + 1; number < current; ++number) {
      const Slot& slot = slots_[static_cast<size_t>(number % kNumSlots)];
      history.push_back(slot.number == number ? slot.value : empty_);
    }
    return history;
  }

  // Returns the time at which the slot that `now` lies in began.
  absl::Time SlotBegin(absl::Time now) const { return absl::UnixEpoch() + NumberOf(now) * slot_time_; }

 private:
  struct Slot {
    int64_t number = -1;  // slot times since the epoch; -1: never used
    Value value = {};
  };

  int64_t NumberOf(absl::Time now) const { return (now - absl::UnixEpoch()) / slot_time_; }

  absl::Duration slot_time_;
  Value empty_;
  std::array<Slot, kNumSlots> slots_;
};

}  // namespace voxserve
