#pragma once

// Appends a stage's wall-clock time when it goes out of scope.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/tensor/point_counts.h"

namespace voxserve {

class StageTimer {
 public:
  StageTimer(std::string name, std::vector<StageTime>& stages)
      : name_(std::move(name)), stages_(stages), start_(std::chrono::steady_clock::now()) {}
  ~StageTimer() { stages_.push_back({std::move(name_), absl::FromChrono(std::chrono::steady_clock::now() - start_)}); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  std::string name_;
  std::vector<StageTime>& stages_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace voxserve
