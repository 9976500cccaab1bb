#pragma once

// A version's folder -> Graph: reads model.textproto and weights.safetensors, and checks them together.
//
// Touches the two files and nothing else; no thread of its own.

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

// INVALID_ARGUMENT (BAD_MODEL) with every problem at once (ProblemsOf). Files that cannot be read are problems too.
// memory: null, or a reservation that is grown before the files are read and before their tensors are converted, and
// holds the graph's bytes at the end. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where they do not fit.
absl::StatusOr<Graph> LoadGraph(const std::filesystem::path& version_folder,
                                MemoryBudget::Reservation* memory = nullptr);

}  // namespace voxserve
