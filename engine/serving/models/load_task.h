#pragma once

// A LoadTask asks the engine to bring versions of a model into service, an UnloadTask to take them out of service
// (Engine::Load and Engine::Unload, which list the errors).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

struct LoadTask {
  std::string model;    // the name of a folder in the model repository
  int64_t version = 0;  // 0: the versions that the model's version policy asks for
  // Gets an error, or the model's versions that are in service after the load, ascending. Called exactly once, on the
  // caller's thread (if the call is refused) or on one of the engine's threads. Must not block. May be empty.
  std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
};

struct UnloadTask {
  std::string model;
  int64_t version = 0;  // 0: all versions; versions that appear in the folder later are not loaded either
  // Gets an error, or the versions that were taken out of service, ascending. The rules for its call are those of
  // LoadTask::done.
  std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
};

}  // namespace voxserve
