#pragma once

// A ModelArgument is the model that a program's --model names, with its version.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/executor/executor.h"
#include "engine/model/model_config.h"

namespace voxserve::offline {

struct ModelArgument {
  std::string folder;   // a model's folder, which holds version folders (numbers)
  int64_t version = 0;  // 0: the newest
};

// Splits "models/minkunet:2" into folder and version. The folder may contain colons. Returns INVALID_ARGUMENT if there
// is no text, or if it ends with another version than 1, 2, ...
absl::StatusOr<ModelArgument> ParseModelArgument(const std::string& text);

// A version of a model on disk.
struct FoundVersion {
  std::filesystem::path model_folder;  // absolute
  int64_t version = 0;
  std::vector<int64_t> versions;  // all that the model has, ascending

  std::filesystem::path folder() const { return model_folder / std::to_string(version); }
};
// Returns NOT_FOUND if there is no such folder, or if it lacks the version.
absl::StatusOr<FoundVersion> FindVersion(const ModelArgument& model);

// Returns the limits by which a server runs the model's batches.
RunLimits LimitsOf(const ModelConfig& config);

}  // namespace voxserve::offline
