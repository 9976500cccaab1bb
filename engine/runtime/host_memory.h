#pragma once

// HostMemory is the host memory that one execution context computes with. Every block is reserved in the process's
// MemoryBudget before it is allocated, and given back when it is freed.
//
// - Blocks of 4 MiB and more are mapped, so that freeing one returns it to the system. Smaller ones come from the heap,
//   which keeps their pages: they count at their maximum until Settle.
// - What is reserved is rounded up to whole MiB, so that small blocks seldom ask the budget.
// - Errors: allocation throws std::bad_alloc, as the standard's interface has it; refusal() says why. Executor::Run
//   turns it into a status.
// - Threads: thread-safe. Nothing waits.
// - Lifetime: it outlives its blocks.

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
  // budget: outlives it. Null: memory is counted, and has no limit.
  explicit HostMemory(MemoryBudget* budget = nullptr);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Resets the peak to the bytes held now, and forgets refusals.
  void BeginBatch() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the heap's free pages to the system, and from then on counts only the heap's bytes in use. Takes
  // milliseconds.
  void Settle() ABSL_LOCKS_EXCLUDED(mutex_);

  // Return the bytes that count now, and their maximum since BeginBatch.
  int64_t held_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t peak_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the last refusal since BeginBatch: RESOURCE_EXHAUSTED (OUT_OF_MEMORY) with the bytes and the limit. OK:
  // none.
  absl::Status refusal() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Records a refusal of memory that a batch reserved in budget() directly, not through this resource.
  void NoteRefusal(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  MemoryBudget* budget() const { return budget_; }

 private:
  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* block, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  // Returns false where the budget refuses.
  bool Take(int64_t bytes, bool is_mapped) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(int64_t bytes, bool is_mapped) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return mapped_bytes_ + most_heap_bytes_; }
  absl::Status Reserve(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MemoryBudget* const budget_;
  mutable absl::Mutex mutex_;
  int64_t mapped_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t heap_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t most_heap_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // since Settle
  int64_t peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  MemoryBudget::Reservation reservation_ ABSL_GUARDED_BY(mutex_);  // held(), rounded up
};

}  // namespace voxserve
