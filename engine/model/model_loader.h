#pragma once

// A version's folder -> Graph: reads model.textproto and weights.safetensors, and checks them together.
//
// Touches the two files and nothing else; no thread of its own.

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"

namespace voxserve {

// INVALID_ARGUMENT (BAD_MODEL) with every problem at once (ProblemsOf). Files that cannot be read are problems too.
absl::StatusOr<Graph> LoadGraph(const std::filesystem::path& version_folder);

}  // namespace voxserve
