#pragma once

// HostBuffer is a block of host memory for a cloud's bytes: ordinary memory, or page-locked memory of a PinnedPool,
// which a GPU can copy from directly.
//
//   ASSIGN_OR_RETURN(HostBuffer buffer, HostBuffer::Create(bytes));
//   for (slice : slices) buffer.Write(begin, slice);
//   buffer.FinishWrites();
//
// - Ownership: it owns ordinary memory. Page-locked memory is lent by a pool, which gets it back when the buffer ends.
//   It moves and does not copy. A default one is empty.
// - Threads: not thread-safe while it is written; any thread may read it, or end it, after that.

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace voxserve {

class PinnedPool;

// How long a buffer lives, which limits the share of a pool that its kind may take.
enum class BufferLife : uint8_t {
  kRequest,  // until its request is answered
  kStream,   // for as long as a stream keeps it for later frames
};

class HostBuffer {
 public:
  HostBuffer() = default;
  // Ordinary memory, its bytes undefined. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where the system has no more. bytes >= 0.
  static absl::StatusOr<HostBuffer> Create(int64_t bytes);
  // Ordinary memory that holds these bytes.
  static absl::StatusOr<HostBuffer> CopyOf(std::string_view bytes);

  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer() { Release(); }

  const char* data() const { return data_; }
  int64_t size() const { return size_; }
  std::string_view bytes() const { return {data_, static_cast<size_t>(size_)}; }
  // True where a device may copy from it asynchronously.
  bool is_pinned() const { return is_pinned_; }

  // Copies bytes to [begin, begin + bytes.size()), which must lie in the buffer. FinishWrites follows the last one.
  void Write(int64_t begin, std::string_view bytes);
  void FinishWrites();

 private:
  friend class PinnedPool;

  void Release();

  char* data_ = nullptr;
  int64_t size_ = 0;
  bool is_pinned_ = false;
  BufferLife life_ = BufferLife::kRequest;
  std::shared_ptr<PinnedPool> pool_;  // is told when the buffer ends; null: none
};

}  // namespace voxserve
