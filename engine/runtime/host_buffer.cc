#include "engine/runtime/host_buffer.h"

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/fault.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/pinned_pool.h"
#include "engine/runtime/streaming_copy.h"

namespace voxserve {

absl::StatusOr<HostBuffer> HostBuffer::Create(int64_t bytes) {
  HostBuffer buffer;
  if (bytes == 0) return buffer;
  if (!FaultAt(FaultSite::kHostBuffer)) buffer.data_ = new (std::nothrow) char[static_cast<size_t>(bytes)];
  if (buffer.data_ == nullptr) {
    return OutOfMemoryError(absl::StrCat("no memory for a cloud of ", bytes, " bytes"));
  }
  buffer.size_ = buffer.capacity_ = bytes;
  return buffer;
}

absl::StatusOr<HostBuffer> HostBuffer::CopyOf(std::string_view bytes) {
  ASSIGN_OR_RETURN(HostBuffer buffer, Create(static_cast<int64_t>(bytes.size())));
  buffer.Write(0, bytes);
  return buffer;
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  capacity_ = std::exchange(other.capacity_, 0);
  is_pinned_ = std::exchange(other.is_pinned_, false);
  life_ = other.life_;
  pool_ = std::move(other.pool_);
  return *this;
}

void HostBuffer::Write(int64_t begin, std::string_view bytes) {
  if (bytes.empty()) return;
  if (is_pinned_) {
    StreamingCopy(data_ + begin, bytes.data(), bytes.size());
  } else {
    std::memcpy(data_ + begin, bytes.data(), bytes.size());
  }
}

void HostBuffer::FinishWrites() {
  if (is_pinned_) FinishStreaming();
}

void HostBuffer::Release() {
  if (pool_ != nullptr) pool_->TakeBack(*this);
  if (!is_pinned_) delete[] data_;
  data_ = nullptr;
  size_ = capacity_ = 0;
  is_pinned_ = false;
  pool_.reset();
}

}  // namespace voxserve
