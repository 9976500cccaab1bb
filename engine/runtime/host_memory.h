#pragma once

// HostMemory allocates the host memory that one execution context computes with. Every block is reserved in the
// process's MemoryBudget before it is allocated, and the reservation ends when the block is freed.
//
// - Blocks of 4 MiB and more, or aligned to more than 4 KiB, are mapped (mmap), so that the system gets their memory
//   back when they are freed. Smaller blocks come from the heap, which may keep the pages of freed blocks. So the heap
//   counts with the largest sum of its blocks' bytes since Settle, not with the current sum.
// - The reservation is rounded up to whole MiB, so that small blocks seldom change it.
// - Errors: an allocation that fails throws std::bad_alloc, as std::pmr::memory_resource requires. refusal() returns
//   the reason. Executor::Run catches the exception and returns a status.
// - Threads: thread-safe. Nothing waits for memory.
// - Lifetime: a HostMemory must outlive its blocks.

#include <cstddef>
#include <cstdint>
#include <memory_resource>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

class HostMemory final : public std::pmr::memory_resource {
 public:
  // budget must outlive the HostMemory. If it is null, memory is counted but not limited.
  explicit HostMemory(MemoryBudget* budget = nullptr);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Resets the peak to the bytes held now, and forgets refusals.
  void BeginBatch() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the heap's free pages to the system, and restarts the heap's maximum from the bytes in use now. Takes some
  // milliseconds.
  void Settle() ABSL_LOCKS_EXCLUDED(mutex_);

  // Return the bytes that are counted now, and their maximum since BeginBatch.
  int64_t held_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t peak_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the reason of the last failed allocation since BeginBatch: RESOURCE_EXHAUSTED (OUT_OF_MEMORY), with a
  // message that names the bytes. Returns OK if none has failed.
  absl::Status refusal() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets refusal(). Code that reserves memory for a batch directly in budget() reports the budget's refusal here.
  void NoteRefusal(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  MemoryBudget* budget() const { return budget_; }

 private:
  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* block, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  // Reserves and counts a block. If the budget refuses, sets refusal_ and returns false.
  bool Take(int64_t bytes, bool is_mapped) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(int64_t bytes, bool is_mapped) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return mapped_bytes_ + most_heap_bytes_; }
  absl::Status Reserve(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MemoryBudget* const budget_;
  mutable absl::Mutex mutex_;
  int64_t mapped_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t heap_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t most_heap_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // the maximum of heap_bytes_ since Settle
  int64_t peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  MemoryBudget::Reservation reservation_ ABSL_GUARDED_BY(mutex_);  // held(), rounded up
};

}  // namespace voxserve
