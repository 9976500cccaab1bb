#pragma once

// LoadGraph makes a Graph of a version's folder: it reads model.textproto and weights.safetensors, and checks them
// together. It reads no other file and starts no thread.

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

// memory: null, or a reservation. It grows before the files are read and before their tensors are converted, and holds
// the graph's bytes at the end. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where these bytes do not fit.
// INVALID_ARGUMENT (BAD_MODEL) with all problems together (ProblemsOf). A file that cannot be read is a problem too.
absl::StatusOr<Graph> LoadGraph(const std::filesystem::path& version_folder,
                                MemoryBudget::Reservation* memory = nullptr);

}  // namespace voxserve
