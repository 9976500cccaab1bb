#pragma once

// These functions allocate page-locked host memory from CUDA. Every GPU of the process may copy from and to such
// memory. Allocating takes milliseconds, and freeing waits for the GPUs' work.
//
// Any thread may call them.

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/runtime/pinned_pool.h"

namespace voxserve {

// Allocates for the calling thread's device. Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if the system has no more.
absl::StatusOr<char*> AllocatePinned(int64_t bytes);
// Frees memory of AllocatePinned, or null. Logs errors.
void FreePinned(char* data);

// Returns the source for a pool whose Adjust is called from any thread. device: CUDA's ordinal of a GPU in use.
PinnedPool::Source PinnedSource(int device);

}  // namespace voxserve
