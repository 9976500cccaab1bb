#include "engine/runtime/arena.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

Arena::Arena(Arena&& other) noexcept
    : memory_(other.memory_),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

absl::Status Arena::Reserve(int64_t bytes) {
  if (bytes <= capacity_) return absl::OkStatus();
  Release();
  const size_t rounded = (static_cast<size_t>(bytes) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  try {
    data_ = static_cast<char*>(memory_->allocate(rounded, kHugePageBytes));
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError(absl::StrCat("no memory for ", bytes, " bytes of a batch"));
  }
  madvise(data_, rounded, MADV_HUGEPAGE);  // may fail: the memory then works with more page faults
  capacity_ = static_cast<int64_t>(rounded);
  return absl::OkStatus();
}

void Arena::Release() {
  if (data_ != nullptr) memory_->deallocate(data_, static_cast<size_t>(capacity_), kHugePageBytes);
  data_ = nullptr;
  capacity_ = 0;
}

}  // namespace voxserve
