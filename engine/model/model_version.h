#pragma once

// A version of a model as its folder holds it: the network and the model's configuration.

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"
#include "engine/model/problems.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

// Of the config alone; the default, and problems, where it is broken.
VersionPolicy ReadVersionPolicy(const std::filesystem::path& model_folder, Problems* problems);

struct LoadedModel {
  Graph graph;  // with its digest
  ModelConfig config;
  std::string content;  // of the three files: what two loads have in common if these are the same
};

// Loads <model_folder>/<version> with <model_folder>/config.textproto. INVALID_ARGUMENT (BAD_MODEL) with every problem
// of the three files at once (ProblemsOf in engine/model/problems.h). memory: as in LoadGraph, whose RESOURCE_EXHAUSTED
// comes at once.
absl::StatusOr<LoadedModel> LoadModelVersion(const std::filesystem::path& model_folder, int64_t version,
                                             MemoryBudget::Reservation* memory = nullptr);

}  // namespace voxserve
