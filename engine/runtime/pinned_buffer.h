#pragma once

// PinnedBuffer is page-locked host memory from and to which a device copies directly. It grows to the largest size
// asked for, and loses its contents when it grows. Not thread-safe: an execution context owns it, and grows it only
// while no copy is under way.

#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/unique_id.h"
#include "engine/runtime/memory_budget.h"
#include "engine/runtime/pinned_pool.h"

namespace voxserve {

class PinnedBuffer {
 public:
  PinnedBuffer();  // takes page-locked memory from CUDA, for the calling thread's device
  explicit PinnedBuffer(PinnedPool::Source source);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  // Makes data() hold at least `bytes`. budget: the memory is reserved there (Use::kScratch) before it is allocated;
  // outlives the buffer; null: nothing is reserved. Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if the budget refuses or
  // the system has no more; the buffer is empty then.
  absl::Status Reserve(int64_t bytes, MemoryBudget* budget = nullptr);
  // Frees all memory. Called while no copy is under way.
  void Release();

  char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }
  // Returns an id of the memory: another one after Release, and after a Reserve that had to allocate.
  uint64_t memory_id() const { return memory_id_.value(); }

 private:
  const PinnedPool::Source source_;
  char* data_ = nullptr;
  int64_t capacity_ = 0;
  UniqueId memory_id_;
  MemoryBudget::Reservation reservation_;  // of the capacity
};

}  // namespace voxserve
