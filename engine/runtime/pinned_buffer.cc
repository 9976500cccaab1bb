#include "engine/runtime/pinned_buffer.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

constexpr int64_t kGranularity = int64_t{1} << 20;

}  // namespace

PinnedBuffer::PinnedBuffer(PinnedPool::Source source) : source_(std::move(source)) {}

PinnedBuffer::~PinnedBuffer() { Release(); }

absl::Status PinnedBuffer::Reserve(int64_t bytes, MemoryBudget* budget) {
  if (bytes <= capacity_) return absl::OkStatus();
  Release();
  // Adds an eighth, since pinning is slow and batches grow slowly.
  const int64_t wanted = (bytes + bytes / 8 + kGranularity - 1) / kGranularity * kGranularity;
  MemoryBudget::Reservation reservation;
  if (budget != nullptr) {
    ASSIGN_OR_RETURN(reservation, budget->Reserve(MemoryBudget::Use::kScratch, wanted));
  }
  ASSIGN_OR_RETURN(data_, source_.allocate(wanted));
  capacity_ = wanted;
  reservation_ = std::move(reservation);
  return absl::OkStatus();
}

void PinnedBuffer::Release() {
  if (data_ != nullptr) source_.free(data_);
  data_ = nullptr;
  capacity_ = 0;
  memory_id_ = UniqueId();
  reservation_.Release();
}

}  // namespace voxserve
