#pragma once

// StreamingCopy copies past the processor's caches, for a device that reads the bytes next: a DMA of lines that lie
// modified in several cores' caches takes four times as long as one of lines that lie in memory.
//
// - Where the processor has no such stores, and for less than a few lines, it copies as memcpy does.
// - Threads: pure functions, any thread.

#include <cstddef>

namespace voxserve {

// Copies `bytes` bytes of any alignment; the two ranges do not overlap. A thread that has copied calls FinishStreaming
// before another thread or a device may read them.
void StreamingCopy(char* to, const char* from, size_t bytes);

// Waits until other threads and devices see what this thread has copied.
void FinishStreaming();

}  // namespace voxserve
