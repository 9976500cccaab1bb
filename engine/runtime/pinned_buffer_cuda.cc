#include "engine/base/status_macros.h"
#include "engine/runtime/pinned_buffer.h"
#include "engine/runtime/pinned_memory.h"

namespace voxserve {
namespace {

constexpr int64_t kGranularity = int64_t{1} << 20;

}  // namespace

PinnedBuffer::~PinnedBuffer() { FreePinned(data_); }

absl::Status PinnedBuffer::Reserve(int64_t bytes) {
  if (bytes <= capacity_) return absl::OkStatus();
  FreePinned(data_);
  data_ = nullptr;
  capacity_ = 0;
  // An eighth more: pinning is slow, and batches grow slowly.
  const int64_t wanted = (bytes + bytes / 8 + kGranularity - 1) / kGranularity * kGranularity;
  ASSIGN_OR_RETURN(data_, AllocatePinned(wanted));
  capacity_ = wanted;
  return absl::OkStatus();
}

}  // namespace voxserve
