#pragma once

// Page-locked host memory from CUDA. Every GPU of the process may copy from it and to it. Allocating takes
// milliseconds, and freeing waits for what the GPUs do.
//
// Threads: any.

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/runtime/pinned_pool.h"

namespace voxserve {

// By the calling thread's device. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where the system has no more.
absl::StatusOr<char*> AllocatePinned(int64_t bytes);
// Logs what fails. data: of AllocatePinned, or null.
void FreePinned(char* data);

// The source of a pool whose Adjust any thread may call. device: CUDA's ordinal of one of the GPUs in use.
PinnedPool::Source PinnedSource(int device);

}  // namespace voxserve
