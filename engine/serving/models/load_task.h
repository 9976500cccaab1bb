#pragma once

// LoadTask and UnloadTask ask to bring versions of a model into service, and to take them out.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

struct LoadTask {
  std::string model;    // the name of a folder in the model repository
  int64_t version = 0;  // 0: the versions that the model's version policy asks for
  // Gets the model's versions that are then in service, ascending. Called exactly once, from the caller's thread
  // (refusals) or one of the engine's; must not block. May be empty.
  std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
};

struct UnloadTask {
  std::string model;
  int64_t version = 0;  // 0: all versions, and those that polling finds later
  // Gets the versions that are no longer listed, ascending. Called as LoadTask::done.
  std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
};

}  // namespace voxserve
