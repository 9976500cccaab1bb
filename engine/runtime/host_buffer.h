#pragma once

// HostBuffer is a block of host memory for a cloud's bytes. It is pageable memory, or page-locked memory of a
// PinnedPool, from which a GPU can copy directly.
//
//   ASSIGN_OR_RETURN(HostBuffer buffer, HostBuffer::Create(bytes));
//   for (slice : slices) buffer.Write(begin, slice);
//   buffer.FinishWrites();
//
// - Ownership: a buffer owns pageable memory. Page-locked memory is lent by a pool, which gets it back when the buffer
//   is destroyed. A buffer can be moved, but not copied. A default one is empty.
// - Threads: only one thread at a time may use a buffer until FinishWrites. After that any thread may read or destroy
//   it.

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace voxserve {

class PinnedPool;

// Says how long a buffer lives. A PinnedPool limits the share of its memory that buffers of streams may take.
enum class BufferLife : uint8_t {
  kRequest,  // until its request is answered
  kStream,   // for as long as a stream keeps it for later frames
};

class HostBuffer {
 public:
  HostBuffer() = default;
  // Returns pageable memory with undefined contents. Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if the system has no
  // more. bytes >= 0.
  static absl::StatusOr<HostBuffer> Create(int64_t bytes);
  // Returns pageable memory that holds these bytes. The errors are those of Create.
  static absl::StatusOr<HostBuffer> CopyOf(std::string_view bytes);

  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer() { Release(); }

  const char* data() const { return data_; }
  int64_t size() const { return size_; }
  std::string_view bytes() const { return {data_, static_cast<size_t>(size_)}; }
  // Returns true if the memory is page-locked, so that a device may copy from it asynchronously.
  bool is_pinned() const { return is_pinned_; }

  // Copies bytes to [begin, begin + bytes.size()), which must lie in the buffer. Call FinishWrites after the last
  // Write, before another thread or a device reads the buffer.
  void Write(int64_t begin, std::string_view bytes);
  void FinishWrites();
  // Lets the buffer end after its first `size` bytes; at most size(). The memory behind them stays the buffer's.
  void Shrink(int64_t size) { size_ = size; }

 private:
  friend class PinnedPool;

  void Release();

  char* data_ = nullptr;
  int64_t size_ = 0;
  int64_t capacity_ = 0;  // the size before Shrink
  bool is_pinned_ = false;
  BufferLife life_ = BufferLife::kRequest;
  std::shared_ptr<PinnedPool> pool_;  // is told when the buffer is destroyed; null: no pool
};

}  // namespace voxserve
