#pragma once

// DeviceCopies caches, on one GPU, copies of bytes that lie in host memory and do not change. A stream's sweep (a cloud
// that later frames use again) then crosses the bus once, however many frames use the sweep and whichever of the GPU's
// contexts run them.
//
// - Key: the object that owns the bytes. When the owner is gone its copy is unused: its memory serves a later copy, or
//   Trim frees it.
// - It is only a cache: Add keeps nothing if there is no room, and Clear forgets everything. A caller that gets no copy
//   uploads the bytes itself.
// - Streams: the cache copies on a stream of its own, and the GPU makes the reader's stream wait for that copy. The
//   cache frees nothing on the streams of contexts, because contexts are destroyed before the cache.
// - Leases: a reader keeps its lease until the host has waited for the work that it queued. After the lease, the memory
//   may be overwritten or freed in the order of the cache's stream. Any thread may release a lease.
// - Lifetime: the pool outlives the cache, and the cache all leases.
// - Threads: thread-safe. A thread that calls a method or releases a lease has made the device current.
// - Errors: those of CudaStatus (cuda_status.h).

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/device_pool.h"
#include "engine/runtime/stream.h"

namespace voxserve {

class DeviceCopies {
 public:
  using Owner = std::shared_ptr<const void>;

  class Copy {
   public:
    const char* data() const { return memory_.data(); }

   private:
    friend class DeviceCopies;
    DeviceBuffer memory_;
    Event uploaded_;
    bool was_unused_ = false;  // at the last Trim
  };
  using Lease = std::shared_ptr<const Copy>;

  // max_bytes: the most device memory that is held at once.
  static absl::StatusOr<std::unique_ptr<DeviceCopies>> Create(DevicePool* pool, int64_t max_bytes);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Returns the owner's copy; null if there is none. Work that is queued on the reader's stream afterwards may read it.
  absl::StatusOr<Lease> Find(const Owner& owner, StreamView reader);

  // Copies the owner's bytes from pinned memory, which must not change until the host has waited for the reader's
  // stream, and returns the copy as Find does. Returns null if there is no room. bytes > 0.
  absl::StatusOr<Lease> Add(const Owner& owner, const char* pinned, int64_t bytes, StreamView reader);

  // Frees memory whose owner is gone and that no new copy has used since the last call. If it is called periodically,
  // enough memory stays for the copies that come and go. Waits for copies under way.
  absl::Status Trim();

  // Forgets every copy. The memory of a leased copy is freed when the lease is released.
  void Clear();

  int64_t allocated_bytes() const;  // without copies that are leased and forgotten

 private:
  using Copies = std::map<std::weak_ptr<const void>, std::shared_ptr<Copy>, std::owner_less<>>;

  DeviceCopies(DevicePool* pool, Stream stream, int64_t max_bytes)
      : pool_(pool), max_bytes_(max_bytes), stream_(std::move(stream)) {}

  absl::Status Upload(const char* pinned, int64_t bytes, StreamView reader, Copy& copy) const;
  // Returns memory of at least this many bytes that nothing reads; null where there is no room.
  std::shared_ptr<Copy> TakeMemory(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Copy> TakeUnused(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves copies whose owners are gone to unused_.
  void CollectUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DevicePool* const pool_;
  const int64_t max_bytes_;
  Stream stream_;
  mutable absl::Mutex mutex_;
  Copies copies_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Copy>> unused_ ABSL_GUARDED_BY(mutex_);
  int64_t allocated_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of copies_ and unused_
};

}  // namespace voxserve
