#pragma once

// Host memory that a device copies from and to without a detour. Grows to the largest size asked for; what it held is
// lost then. Not thread-safe: an execution context owns it, and asks for more only while no copy is under way.

#include <cstdint>

#include "absl/status/status.h"
#include "engine/runtime/memory_budget.h"
#include "engine/runtime/pinned_pool.h"

namespace voxserve {

class PinnedBuffer {
 public:
  PinnedBuffer();  // takes page-locked memory from CUDA, by the calling thread's device
  explicit PinnedBuffer(PinnedPool::Source source);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  // budget: what the memory is reserved in before it is allocated (Use::kScratch); it outlives the buffer. Null: none
  // is asked. RESOURCE_EXHAUSTED (OUT_OF_MEMORY) where it refuses, or the system has no more; the buffer is empty then.
  absl::Status Reserve(int64_t bytes, MemoryBudget* budget = nullptr);
  // Gives all memory back. No copy is under way.
  void Release();

  char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }

 private:
  const PinnedPool::Source source_;
  char* data_ = nullptr;
  int64_t capacity_ = 0;
  MemoryBudget::Reservation reservation_;  // of the capacity
};

}  // namespace voxserve
