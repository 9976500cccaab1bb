#pragma once

// PinnedPool keeps page-locked host memory for the clouds of requests, so that a GPU copies them directly from the
// memory that received them. Page-locking takes milliseconds and blocks the GPU's driver, so no request waits for it:
//
// - Take hands out a page-locked buffer that is ready. If there is none, it returns pageable memory.
// - Adjust allocates and frees buffers. A background thread calls it once a second. For each size it keeps as many
//   buffers as the most that were in use at the same time during the last 30 to 60 calls.
// - Sizes are powers of two from 64 KiB to 64 MiB. A smaller or larger cloud gets pageable memory.
// - Bounds: the page-locked bytes, in use or not, never exceed max_bytes, and are reserved in the MemoryBudget
//   (Use::kPinned). The owner of a cloud reserves the cloud's bytes there once more. Streams (BufferLife::kStream) get
//   at most half of max_bytes, so that requests find free buffers.
// - A returned buffer is handed out again at once. Code that copies from a buffer asynchronously must therefore keep
//   the buffer until the copy has ended.
// - Threads: thread-safe, except that calls of Adjust must not overlap. Only Adjust and the destructor wait.
// - Lifetime: every buffer holds a reference to the pool. The thread that drops the last reference frees the
//   page-locked memory. The budget outlives the pool.

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
  // The Adjust calls of one period. The most buffers in use are kept for the current period and the period before.
  static constexpr int kMemoryOfAdjusts = 30;
  // The most that one Adjust page-locks, and the most that it frees, so that a call ends within about 50 ms.
  static constexpr int64_t kStepBytes = int64_t{64} << 20;

  // The source of page-locked memory: CUDA (pinned_memory.h), or a test's.
  struct Source {
    std::function<absl::StatusOr<char*>(int64_t bytes)> allocate;
    std::function<void(char* data)> free;
  };

  struct Options {
    Source source;
    int64_t max_bytes = int64_t{1} << 30;
    MemoryBudget* budget = nullptr;  // null: the pool's memory is not counted
  };

  static std::shared_ptr<PinnedPool> Create(Options options);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Returns a buffer of this many bytes, with undefined contents. The errors are those of HostBuffer::Create.
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
    std::vector<char*> ready;     // page-locked ones that are not in use; reserved for num_buffers
    int64_t num_out = 0;          // in use, requests' pageable memory included
    int64_t most_out = 0;         // the largest num_out in this period of kMemoryOfAdjusts calls
    int64_t most_out_before = 0;  // the largest num_out in the period before

    int64_t num_wanted() const { return std::max(most_out, most_out_before); }
  };

  explicit PinnedPool(Options options);

  Shelf& ShelfOf(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Called by the destructor of a buffer: its page-locked memory becomes ready again.
  void TakeBack(const HostBuffer& buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes buffers that are no longer wanted and returns them for the caller to free.
  std::vector<char*> RemoveUnwanted() ABSL_LOCKS_EXCLUDED(mutex_);
  // Allocates one buffer of at most this many bytes, of a size that lacks buffers. Returns its bytes; 0 if no buffer is
  // wanted or allowed.
  absl::StatusOr<int64_t> AddWanted(int64_t most_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  bool is_failing_ = false;  // the last Adjust found no memory and logged that; only Adjust uses it
  mutable absl::Mutex mutex_;
  std::array<Shelf, kNumSizes> shelves_ ABSL_GUARDED_BY(mutex_);
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t stream_bytes_ ABSL_GUARDED_BY(mutex_) = 0;               // page-locked bytes that streams keep
  int num_adjusts_ ABSL_GUARDED_BY(mutex_) = 0;                    // in this period
  MemoryBudget::Reservation reservation_ ABSL_GUARDED_BY(mutex_);  // pinned_bytes_
};

}  // namespace voxserve
