#pragma once

// LoadTask and UnloadTask are calls that bring versions of a model into service and take them out.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

struct LoadTask {
  std::string model;    // name of a folder of the model repository
  int64_t version = 0;  // 0: those that the model's version policy asks for
  // Gets the model's versions that are in service then, ascending. Called exactly once, from the caller's thread
  // (refusals) or one of the engine's; must not block. May be empty.
  std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
};

struct UnloadTask {
  std::string model;
  int64_t version = 0;  // 0: all, and what polling finds later too
  // Gets the versions that are listed no more, ascending. Called as LoadTask::done.
  std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
};

}  // namespace voxserve
