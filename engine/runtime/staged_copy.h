#pragma once

// StagedCopy copies host memory into page-locked memory with several threads, so that a device can read the first
// bytes while the last ones are still being copied. Stores bypass the caches (streaming_copy.h).

#include <functional>
#include <string_view>

#include "absl/types/span.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

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
