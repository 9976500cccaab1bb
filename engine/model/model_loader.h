#pragma once

// LoadGraph makes a Graph of a version's folder: it reads model.textproto and the header of weights.safetensors, checks
// them together, and only then reads the weights. It reads no other file and starts no thread.

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

// memory: null, or a reservation. It grows before each part of the files is read and before tensors are converted, and
// holds the graph's bytes at the end. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where these bytes do not fit.
// INVALID_ARGUMENT (BAD_MODEL) with all problems together (ProblemsOf). A file that cannot be read is a problem too.
// Weights that are NaN or infinite are reported where nothing else is wrong.
absl::StatusOr<Graph> LoadGraph(const std::filesystem::path& version_folder,
                                MemoryBudget::Reservation* memory = nullptr);

}  // namespace voxserve
