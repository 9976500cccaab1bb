#pragma once

// Host memory that a device copies from and to without a detour. Grows to the largest size asked for; what it held is
// lost then. Not thread-safe: an execution context owns it, and asks for more only while no copy is under way.

#include <cstdint>

#include "absl/status/status.h"

namespace voxserve {

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  // RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where the system has no more; the buffer is empty then.
  absl::Status Reserve(int64_t bytes);

  char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }

 private:
  char* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace voxserve
