#pragma once

// A StageTimer appends its stage's wall-clock time to `stages` when it is destroyed. Timers may be nested.

#include <chrono>
#include <cstddef>
#include <vector>

#include "absl/time/time.h"
#include "engine/tensor/stage.h"

namespace voxserve {

class StageTimer {
 public:
  StageTimer(Stage stage, std::vector<StageTime>& stages)
      : stage_(stage), stages_(stages), start_(std::chrono::steady_clock::now()) {
    // Reserves memory here, because the destructors of this timer and of a timer around it must not throw.
    if (stages_.capacity() < stages_.size() + kRoom / 2) stages_.reserve(stages_.size() + kRoom);
  }
  ~StageTimer() { stages_.push_back({stage_, absl::FromChrono(std::chrono::steady_clock::now() - start_)}); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  static constexpr size_t kRoom = 16;

  const Stage stage_;
  std::vector<StageTime>& stages_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace voxserve
