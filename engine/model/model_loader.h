#pragma once

// LoadGraph makes a Graph from the folder of a model's version: it reads model.textproto and the header of
// weights.safetensors, checks them together, and only then reads the weights. It reads no other file and starts no
// thread. Any thread may call it.

#include <filesystem>
#include <stop_token>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

struct LoadOptions {
  // Null, or a reservation in the memory budget. It grows before each part of the files is read, parsed or converted,
  // and holds the graph's bytes at the end.
  MemoryBudget::Reservation* memory = nullptr;
  std::stop_token stop = {};  // a request ends the load at the next node, or within some 16 MiB of the weights
};

// Errors:
// - RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if the budget has no room for these bytes;
// - UNAVAILABLE (DRAINING) if options.stop was requested;
// - INVALID_ARGUMENT (BAD_MODEL) with all problems of both files together (ProblemsOf). A file that cannot be read is a
//   problem too. Weights that are NaN or infinite are reported only if nothing else is wrong, since the weights are
//   read last.
absl::StatusOr<Graph> LoadGraph(const std::filesystem::path& version_folder, const LoadOptions& options = {});

}  // namespace voxserve
