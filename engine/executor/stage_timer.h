#pragma once

// Appends a stage's wall-clock time when it goes out of scope.

#include <chrono>
#include <vector>

#include "absl/time/time.h"
#include "engine/tensor/stage.h"

namespace voxserve {

class StageTimer {
 public:
  StageTimer(Stage stage, std::vector<StageTime>& stages)
      : stage_(stage), stages_(stages), start_(std::chrono::steady_clock::now()) {}
  ~StageTimer() { stages_.push_back({stage_, absl::FromChrono(std::chrono::steady_clock::now() - start_)}); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  const Stage stage_;
  std::vector<StageTime>& stages_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace voxserve
