#pragma once

// PinnedPool keeps page-locked host memory for the clouds of requests, so that a GPU copies them from where they were
// received. Page-locking takes milliseconds and holds up the GPU's driver, so no request waits for it:
//
// - Take hands out a buffer that is ready, else ordinary memory.
// - Adjust makes and frees buffers, in the background. It is called once a second. It keeps as many of each size as
//   were out at once in the last half a minute, and forgets that most within a minute.
// - Sizes are powers of two from 64 KiB to 64 MiB. A smaller or larger cloud gets ordinary memory.
// - Bounds: max_bytes in all, and what the MemoryBudget grants (Use::kPinned), in use or not. Whoever holds a cloud for
//   a client counts its bytes besides. What streams keep takes half at most, so that requests always find some.
// - A buffer that comes back is handed out again at once: whoever copies from it asynchronously keeps it until the copy
//   has ended.
// - Threads: thread-safe, but that calls of Adjust do not overlap. Nothing waits but Adjust and the destructor.
// - Lifetime: its buffers keep it alive, and the thread that ends the last one frees the rest. The budget outlives it.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/host_buffer.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  static constexpr int64_t kMinBytes = int64_t{64} << 10;
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  // Calls of Adjust after which a size's most is forgotten, at the latest after twice as many.
  static constexpr int kMemoryOfAdjusts = 30;
  // The most that one Adjust page-locks, and the most that it frees: a call ends within some 50 ms.
  static constexpr int64_t kStepBytes = int64_t{64} << 20;

  // Where page-locked memory comes from: CUDA (pinned_memory.h).
  struct Source {
    std::function<absl::StatusOr<char*>(int64_t bytes)> allocate;
    std::function<void(char* data)> free;
  };

  struct Options {
    Source source;
    int64_t max_bytes = int64_t{1} << 30;
    MemoryBudget* budget = nullptr;  // null: none is asked
  };

  static std::shared_ptr<PinnedPool> Create(Options options);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // A buffer of so many bytes, which are undefined. RESOURCE_EXHAUSTED as HostBuffer::Create.
  absl::StatusOr<HostBuffer> Take(int64_t bytes, BufferLife life);

  void Adjust();

  // Returns the bytes that are page-locked, in use or not.
  int64_t pinned_bytes() const;

 private:
  friend class HostBuffer;

  static constexpr size_t kNumSizes = 11;
  static_assert(kMinBytes << (kNumSizes - 1) == kMaxBytes);

  // The buffers of one size.
  struct Shelf {
    int64_t buffer_bytes = 0;
    int64_t num_buffers = 0;      // page-locked ones, in use or not
    std::vector<char*> ready;     // those not in use; it has room for all of them
    int64_t num_out = 0;          // in use, those in ordinary memory included
    int64_t most_out = 0;         // since the last turn of the memory
    int64_t most_out_before = 0;  // in the turn before that

    int64_t num_wanted() const { return std::max(most_out, most_out_before); }
  };

  explicit PinnedPool(Options options);

  Shelf& ShelfOf(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The buffer ends: its page-locked memory is ready again.
  void TakeBack(const HostBuffer& buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes out buffers that are no longer wanted, for the caller to free.
  std::vector<char*> RemoveUnwanted() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes one buffer that is wanted, of no more than so many bytes. Returns its bytes; 0 where none is wanted, or may
  // be made.
  absl::StatusOr<int64_t> AddWanted(int64_t most_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  bool is_failing_ = false;  // Adjust's: the last one found no memory, and said so
  mutable absl::Mutex mutex_;
  std::array<Shelf, kNumSizes> shelves_ ABSL_GUARDED_BY(mutex_);
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t stream_bytes_ ABSL_GUARDED_BY(mutex_) = 0;               // page-locked ones that streams keep
  int num_adjusts_ ABSL_GUARDED_BY(mutex_) = 0;                    // in this turn
  MemoryBudget::Reservation reservation_ ABSL_GUARDED_BY(mutex_);  // of pinned_bytes_
};

}  // namespace voxserve
