#pragma once

// A CUDA device's memory, as this process may use it: every allocation of ours comes from here and is counted, so that
// --device_memory_limit is kept and a leak shows. (CUDA's own context and what cuBLAS keeps for a handle are not ours.)
// Memory is ordered by streams (cudaMallocFromPoolAsync): what one batch frees, the next one on the stream gets without
// waiting. Unused memory goes back to the device when a stream is waited for.
//
// The pool outlives its buffers. Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/stream.h"

struct CUmemPoolHandle_st;

namespace voxserve {

class DevicePool {
 public:
  struct Options {
    int device = 0;           // CUDA's ordinal
    int64_t limit_bytes = 0;  // all that may be allocated at once; 0: what the device has
  };

  static absl::StatusOr<std::unique_ptr<DevicePool>> Create(const Options& options);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // 256-byte aligned. RESOURCE_EXHAUSTED (OUT_OF_MEMORY), naming both sizes, where the limit or the device has no room.
  // INTERNAL while the stream's work is captured.
  absl::StatusOr<void*> Allocate(int64_t bytes, StreamView stream);
  // The memory must not be used by work that is queued on the stream later.
  void Free(void* data, int64_t bytes, StreamView stream);

  // Makes the device the calling thread's.
  absl::Status MakeCurrent() const;
  int device() const { return options_.device; }
  int64_t limit_bytes() const { return options_.limit_bytes; }
  int64_t used_bytes() const { return used_bytes_; }  // allocated and not freed
  absl::StatusOr<int64_t> reserved_bytes() const;     // that the pool holds of the device, used or not

 private:
  explicit DevicePool(const Options& options) : options_(options) {}

  Options options_;
  CUmemPoolHandle_st* pool_ = nullptr;
  std::atomic<int64_t> used_bytes_{0};
};

// Memory of a pool, freed in the order of the stream that it was made on. Moves, does not copy.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // The stream outlives the buffer.
  static absl::StatusOr<DeviceBuffer> Create(DevicePool& pool, int64_t bytes, StreamView stream);
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  DevicePool* pool_ = nullptr;
  StreamView stream_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Memory that is handed out piece by piece and taken back all at once, batch after batch. Within a batch it is a stack:
// what was taken last can go back first. Once the arena has seen the largest batch it allocates nothing any more.
//
// Belongs to an execution context. Not thread-safe.
class DeviceArena {
 public:
  DeviceArena() = default;
  DeviceArena(DevicePool* pool, StreamView stream) : pool_(pool), stream_(stream) {}

  // The end of what is taken.
  struct Mark {
    size_t num_blocks = 0;
    int64_t used = 0;
    int64_t taken = 0;
  };

  // 256-byte aligned, contents free, valid until Reset, or until ReturnTo an earlier mark. RESOURCE_EXHAUSTED as in
  // DevicePool.
  absl::StatusOr<char*> Take(int64_t bytes);
  template <typename T>
  absl::StatusOr<T*> TakeArray(int64_t count) {
    absl::StatusOr<char*> data = Take(count * static_cast<int64_t>(sizeof(T)));
    if (!data.ok()) return data.status();
    return reinterpret_cast<T*>(*data);
  }

  Mark Top() const { return {.num_blocks = blocks_.size(), .used = used_, .taken = taken_}; }
  // Takes back what was taken since the mark, in the order of the stream. The mark is of the time since the last Reset;
  // a default one stands before everything.
  void ReturnTo(const Mark& mark);
  // Takes everything back, in the order of the stream. Where one block was not enough there is one afterwards that
  // would have been, for which the stream is waited for.
  void Reset();
  // Sees to one block of so many bytes, so that they are not taken piece by piece beside a block that is too small.
  // What there was is given back first, and the stream waited for. Does nothing where something is taken. Without room
  // the next Take says so or finds some.
  void Reserve(int64_t bytes);
  // Gives everything back to the pool.
  void Release();

  int64_t capacity() const;
  // The most that was handed out at once since the last Reset or Release.
  int64_t most_bytes() const { return most_; }

  // A first block's size, and the granularity of all: small batches then share one block from the start.
  static constexpr int64_t kBlockBytes = int64_t{16} << 20;

 private:
  // In place of all that there are.
  void MakeOneBlock(int64_t bytes);

  DevicePool* pool_ = nullptr;
  StreamView stream_;
  std::vector<DeviceBuffer> blocks_;  // the last one is being filled
  int64_t used_ = 0;                  // of the last block
  int64_t taken_ = 0;                 // of all
  int64_t most_ = 0;
};

}  // namespace voxserve
