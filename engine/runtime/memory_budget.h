#pragma once

// MemoryBudget counts the host memory that the process holds, by its use, against one limit (--memory_limit). Code that
// allocates as much as a client asks for reserves the bytes first, and is refused before it allocates.
//
// - Data that waits (requests, sweeps, answers, scans of a tuning search) may take half of the limit. The other half is
//   left to models and to the scratch of running batches. A full queue then never stops the work that empties it.
// - Threads: thread-safe. Nothing waits.
// - Lifetime: the budget outlives its reservations.

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace voxserve {

class MemoryBudget {
 public:
  enum class Use {
    kRequests,  // clouds and messages of requests that wait or run
    kSweeps,    // clouds that streams keep for later frames
    kAnswers,   // answers that are not sent yet
    kTuning,    // scans that the search for a plan keeps
    kScratch,   // memory that batches compute with
    kModels,    // weights
    kPinned,    // page-locked memory that a GPU copies clouds from, in use or not
  };
  static constexpr size_t kNumUses = 7;

  // A Reservation gives its bytes back when it is destroyed. It can be moved, but not copied. A default one holds
  // nothing.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept { *this = std::move(other); }
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation() { Release(); }

    int64_t bytes() const { return bytes_; }
    // Changes the reservation to this many bytes. Growing may fail with Reserve's errors, and then changes nothing. A
    // default reservation stays empty.
    absl::Status Resize(int64_t bytes);
    // Gives its bytes back now.
    void Release();

   private:
    friend class MemoryBudget;
    Reservation(MemoryBudget* budget, Use use, int64_t bytes) : budget_(budget), use_(use), bytes_(bytes) {}

    MemoryBudget* budget_ = nullptr;
    Use use_ = Use::kRequests;
    int64_t bytes_ = 0;
  };

  // limit_bytes: 0 for no limit; bytes are counted all the same.
  explicit MemoryBudget(int64_t limit_bytes = 0) : limit_bytes_(limit_bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Reserves the bytes, or returns RESOURCE_EXHAUSTED if they do not fit; the message names the bytes, the bytes held
  // and the limits. The reason is QUEUE_FULL, with a retry delay, for data that waits (requests, sweeps, answers,
  // tuning) if the bytes could fit later; else it is OUT_OF_MEMORY. in_place_of: held bytes that the new ones will
  // replace. They do not count against the limit, so the limit may be exceeded by this many bytes until they are given
  // back.
  absl::StatusOr<Reservation> Reserve(Use use, int64_t bytes, int64_t in_place_of = 0) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t held(Use use) const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t held() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void GiveBack(Use use, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  std::array<int64_t, kNumUses> held_ ABSL_GUARDED_BY(mutex_) = {};
};

// Returns "requests", "sweeps", ...: for logs and metrics.
std::string_view NameOf(MemoryBudget::Use use);

}  // namespace voxserve
