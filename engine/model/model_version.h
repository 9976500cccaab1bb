#pragma once

// This file loads a version of a model from its folder: the network and the model's configuration.

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"
#include "engine/model/problems.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

// Reads the version policy; reads no other file than config.textproto. Where that is broken, adds problems and returns
// the default policy.
VersionPolicy ReadVersionPolicy(const std::filesystem::path& model_folder, Problems* problems);

struct LoadedModel {
  Graph graph;  // with its digest
  ModelConfig config;
  std::string content;  // identifies the content of the three files: equal in two loads if the files were equal
};

// Loads <model_folder>/<version> with <model_folder>/config.textproto. INVALID_ARGUMENT (BAD_MODEL) with the problems
// of all three files together (ProblemsOf in engine/model/problems.h). memory: as in LoadGraph; its RESOURCE_EXHAUSTED
// is returned alone, without problems.
absl::StatusOr<LoadedModel> LoadModelVersion(const std::filesystem::path& model_folder, int64_t version,
                                             MemoryBudget::Reservation* memory = nullptr);

}  // namespace voxserve
