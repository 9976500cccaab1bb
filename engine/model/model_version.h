#pragma once

// These functions load a version of a model from its folder: the network and the model's configuration.

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"
#include "engine/model/model_loader.h"
#include "engine/model/problems.h"

namespace voxserve {

// Reads the version policy from the model folder's config.textproto, and reads no other file. If config.textproto has
// problems, adds them and returns the default policy, which serves all versions.
VersionPolicy ReadVersionPolicy(const std::filesystem::path& model_folder, Problems* problems);

// Returns the file that says how a version is served: config.textproto of the version's folder if it has one, else that
// of the model's folder, which need not exist.
std::filesystem::path ConfigPathOf(const std::filesystem::path& model_folder, int64_t version);

struct LoadedModel {
  Graph graph;  // with its digests
  ModelConfig config;
  std::string content;  // identifies the content of the three files: equal in two loads if the files were equal
};

// Loads <model_folder>/<version> with the config at ConfigPathOf. Errors:
// - RESOURCE_EXHAUSTED (OUT_OF_MEMORY) and UNAVAILABLE (DRAINING) of LoadGraph; they come alone, without problems;
// - INVALID_ARGUMENT (BAD_MODEL) with the problems of all three files together (ProblemsOf).
absl::StatusOr<LoadedModel> LoadModelVersion(const std::filesystem::path& model_folder, int64_t version,
                                             const LoadOptions& options = {});

}  // namespace voxserve
