#pragma once

// DevicePool allocates the memory of one CUDA device for this process. It counts all allocations, so that
// --device_memory_limit holds, and its destructor logs memory that was not freed. (CUDA's own context and cuBLAS's
// memory for a handle do not count.)
//
// - Order: memory is ordered by streams (cudaMallocFromPoolAsync), so a stream reuses freed memory without waiting.
// - Unused memory goes back to the device when a stream is synchronized.
// - Lifetime: the pool outlives its buffers. Threads: thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/unique_id.h"
#include "engine/runtime/stream.h"

struct CUmemPoolHandle_st;

namespace voxserve {

class DevicePool {
 public:
  struct Options {
    int device = 0;           // CUDA's ordinal
    int64_t limit_bytes = 0;  // the most that may be allocated at once; 0: all that the device has
  };

  static absl::StatusOr<std::unique_ptr<DevicePool>> Create(const Options& options);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // Returns memory that is 256-byte aligned. Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if the limit or the device has
  // no room; the message names the bytes asked for, the bytes in use and the limit. Returns INTERNAL while the stream
  // is being captured into a CUDA graph.
  absl::StatusOr<void*> Allocate(int64_t bytes, StreamView stream);
  // Frees the memory in the order of the stream: work that is queued on the stream later must not use the memory.
  void Free(void* data, int64_t bytes, StreamView stream);

  // Makes the device current for the calling thread.
  absl::Status MakeCurrent() const;
  int device() const { return options_.device; }
  int64_t limit_bytes() const { return options_.limit_bytes; }
  int64_t used_bytes() const { return used_bytes_; }  // allocated and not freed
  absl::StatusOr<int64_t> reserved_bytes() const;     // held by the pool on the device, used or not

 private:
  explicit DevicePool(const Options& options) : options_(options) {}

  Options options_;
  CUmemPoolHandle_st* pool_ = nullptr;
  std::atomic<int64_t> used_bytes_{0};
};

// A DeviceBuffer owns a block of a pool's memory. It frees the block in the order of the stream on which it was made.
// It can be moved, but not copied.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // The stream outlives the buffer. 0 bytes give an empty buffer. The errors are those of DevicePool::Allocate.
  static absl::StatusOr<DeviceBuffer> Create(DevicePool& pool, int64_t bytes, StreamView stream);
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  uint64_t id() const { return id_.value(); }  // no other buffer has or had it

 private:
  DevicePool* pool_ = nullptr;
  StreamView stream_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  UniqueId id_;
};

// DeviceArena hands out memory piece by piece and takes all of it back at once, batch after batch. Within a batch it is
// a stack: memory that was taken last may be returned first. Once it has served the largest batch it allocates nothing
// more.
//
// An execution context owns it. Not thread-safe.
class DeviceArena {
 public:
  DeviceArena() = default;
  DeviceArena(DevicePool* pool, StreamView stream) : pool_(pool), stream_(stream) {}

  // A position in the stack, for ReturnTo.
  struct Mark {
    size_t num_blocks = 0;
    int64_t used = 0;
    int64_t taken = 0;
  };

  // Returns memory that is 256-byte aligned, with undefined contents, valid until Reset, or until ReturnTo an earlier
  // mark. The errors are those of DevicePool::Allocate.
  absl::StatusOr<char*> Take(int64_t bytes);
  template <typename T>
  absl::StatusOr<T*> TakeArray(int64_t count) {
    absl::StatusOr<char*> data = Take(count * static_cast<int64_t>(sizeof(T)));
    if (!data.ok()) return data.status();
    return reinterpret_cast<T*>(*data);
  }

  Mark Top() const { return {.num_blocks = blocks_.size(), .used = used_, .taken = taken_}; }
  // Takes back, in the order of the stream, all memory that was taken since the mark. The mark must be later than the
  // last Reset; a default mark is before everything.
  void ReturnTo(const Mark& mark);
  // Takes everything back, in the order of the stream. If the batch needed several blocks, replaces them by one that
  // would have been enough, and waits for the stream to do so.
  void Reset();
  // Makes one block of this many bytes, so that Take need not add blocks to one that is too small. Frees the blocks
  // that exist first, and waits for the stream. Does nothing while memory is taken. Does not report a lack of memory:
  // the next Take does.
  void Reserve(int64_t bytes);
  // Gives everything back to the pool.
  void Release();

  int64_t capacity() const;
  // Returns the id of the only block; 0 if there is none, or if there are several. As long as the id stays the same,
  // equal calls of Take after Reset return equal addresses.
  uint64_t memory_id() const { return blocks_.size() == 1 ? blocks_.front().id() : 0; }
  // Returns the most that was handed out at once since the last Reset or Release.
  int64_t most_bytes() const { return most_; }

  // The size of the first block, and the unit of all sizes. Small batches then share one block from the start.
  static constexpr int64_t kBlockBytes = int64_t{16} << 20;

 private:
  // Replaces all blocks by one.
  void MakeOneBlock(int64_t bytes);

  DevicePool* pool_ = nullptr;
  StreamView stream_;
  std::vector<DeviceBuffer> blocks_;  // Take fills the last one
  int64_t used_ = 0;                  // bytes taken of the last block
  int64_t taken_ = 0;                 // bytes taken of all blocks
  int64_t most_ = 0;                  // the largest taken_
};

}  // namespace voxserve
