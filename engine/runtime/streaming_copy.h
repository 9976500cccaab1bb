#pragma once

// StreamingCopy copies with stores that bypass the processor's caches (non-temporal stores), for a device that reads
// the bytes next. A DMA transfer of cache lines that lie modified in several cores' caches takes four times as long as
// a transfer of lines that lie in memory.
//
// - If the processor has no such stores, or for less than four cache lines, it copies like memcpy.
// - Threads: pure functions, any thread.

#include <cstddef>

namespace voxserve {

// Copies `bytes` bytes of any alignment; the two ranges do not overlap. After copying, the same thread calls
// FinishStreaming before another thread or a device may read the bytes.
void StreamingCopy(char* to, const char* from, size_t bytes);

// Makes the bytes that this thread has copied visible to other threads and devices.
void FinishStreaming();

}  // namespace voxserve
