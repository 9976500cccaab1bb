#include "engine/runtime/pinned_buffer.h"
#include "engine/runtime/pinned_memory.h"

namespace voxserve {

PinnedBuffer::PinnedBuffer() : PinnedBuffer({.allocate = AllocatePinned, .free = FreePinned}) {}

}  // namespace voxserve
