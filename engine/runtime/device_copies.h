#pragma once

// Copies, on one GPU, of bytes that lie in host memory and do not change, for batches to come: a sweep crosses the bus
// once, however many frames it is part of, whichever of the GPU's contexts run them.
//
// A cache and no more. A copy is found by the object that owns the bytes, and is of no use once that is gone; then its
// memory serves the next one, or goes back with Trim. Where there is no room nothing is kept, and Clear forgets
// everything: who finds no copy uploads the bytes as it would without.
//
// Copies are made on a stream of the cache's own, and its readers wait for that on the GPU. A reader keeps its lease
// until the host has waited for what it queued: then the memory may be overwritten or freed, in the cache's stream,
// whichever thread lets the lease go. Nothing here depends on the streams of contexts, which end before the cache; the
// pool outlives the cache, and the cache all leases.
//
// Thread-safe. Threads that call it or let leases go have made the device current.

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

  // max_bytes: of device memory that is held at once.
  static absl::StatusOr<std::unique_ptr<DeviceCopies>> Create(DevicePool* pool, int64_t max_bytes);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // The owner's copy; null where there is none. Work that is queued on the reader's stream afterwards may read it.
  absl::StatusOr<Lease> Find(const Owner& owner, StreamView reader);

  // Copies the owner's bytes from pinned memory, which must stay as it is until the host has waited for the reader's
  // stream; then as Find. Null where there is no room. bytes > 0.
  absl::StatusOr<Lease> Add(const Owner& owner, const char* pinned, int64_t bytes, StreamView reader);

  // Gives memory back whose owner is gone and that no copy has taken since the call before this one: called every now
  // and then it leaves those who come and go what they need. Waits for copies under way.
  absl::Status Trim();

  // Forgets every copy; the memory of those that are leased goes with the lease.
  void Clear();

  int64_t allocated_bytes() const;  // less what is leased and forgotten

 private:
  using Copies = std::map<std::weak_ptr<const void>, std::shared_ptr<Copy>, std::owner_less<>>;

  DeviceCopies(DevicePool* pool, Stream stream, int64_t max_bytes)
      : pool_(pool), max_bytes_(max_bytes), stream_(std::move(stream)) {}

  absl::Status Upload(const char* pinned, int64_t bytes, StreamView reader, Copy& copy) const;
  // Memory that nobody reads, of at least so many bytes; null where there is no room.
  std::shared_ptr<Copy> TakeMemory(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Copy> TakeUnused(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves copies whose owners are gone to the unused ones.
  void CollectUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DevicePool* const pool_;
  const int64_t max_bytes_;
  Stream stream_;
  mutable absl::Mutex mutex_;
  Copies copies_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Copy>> unused_ ABSL_GUARDED_BY(mutex_);
  int64_t allocated_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of both
};

}  // namespace voxserve
