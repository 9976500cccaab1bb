#pragma once

// Ends a benchmark if something fails without which it cannot measure.

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/status/statusor.h"

namespace voxserve::bench {

// Returns the value, or prints the error and ends the program with 1.
template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status() << std::endl;
  std::exit(1);
}

// Does the same for an error without a value.
inline void OrDie(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}

}  // namespace voxserve::bench
