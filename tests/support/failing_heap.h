#pragma once

// Makes an allocation of the calling thread fail. A test program that calls these functions gets their operators new,
// which count the allocations of a thread after FailAllocation. (std::malloc is not counted, nor is what the standard
// library's own code allocates by its own operators.)

#include <cstdint>

namespace voxserve::support {

// `num_before` allocations of this thread succeed, the next one throws std::bad_alloc, and all later ones succeed. A
// negative number: none fails from now on.
void FailAllocation(int64_t num_before);

// Returns true if no allocation is due to fail in this thread: the one that FailAllocation announced has failed.
bool HasFailed();

}  // namespace voxserve::support
