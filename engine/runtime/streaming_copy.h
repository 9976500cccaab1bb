#pragma once

// StreamingCopy copies with stores that bypass the processor's caches (non-temporal stores), for a device that reads
// the bytes next. A DMA transfer of cache lines that lie modified in several cores' caches takes four times as long as
// a transfer of lines that lie in memory.
//
// - If the processor has no such stores, or for less than four cache lines, it copies like memcpy.
// - Threads: pure functions, any thread.
//
// StagedCopy copies so with several threads into page-locked memory. A device can read the first bytes while the last
// ones are still being copied.

#include <cstddef>
#include <functional>
#include <string_view>

#include "absl/types/span.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

// Copies `bytes` bytes of any alignment; the two ranges do not overlap. After copying, the same thread calls
// FinishStreaming before another thread or a device may read the bytes.
void StreamingCopy(char* to, const char* from, size_t bytes);

// Makes the bytes that this thread has copied visible to other threads and devices.
void FinishStreaming();

struct StagedRange {
  char* to = nullptr;
  std::string_view from;
};

// Copies every range to its place. The places are in page-locked memory, in ascending order, and do not overlap.
// is_ready(end) is called on the calling thread, which may call CUDA, again and again with an `end` that grows: all
// bytes of all places below `end` are copied. At last `end` is the end of the last place. is_ready must neither throw
// nor use the pool. Not called if there are no bytes.
void StagedCopy(kernels::ThreadPool& pool, absl::Span<const StagedRange> ranges,
                const std::function<void(const char* end)>& is_ready);

}  // namespace voxserve
