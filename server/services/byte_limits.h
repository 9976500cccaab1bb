#pragma once

// ByteLimits bounds the bytes that the services hold for their clients: requests, frames and sweeps of streams, and
// answers that have not left. A byte counts three times: against the limit of its kind, against its client's share of
// all kinds together, and against the process's MemoryBudget.
//
// - Fair shares: of a kind, a client may hold as much as it leaves free. So one alone gets half of the limit, and who
//   comes with little is let in beside any number of clients that want all they can get.
// - Errors: RESOURCE_EXHAUSTED with a retry delay; reason CLIENT_LIMIT where the client has more than its share, else
//   QUEUE_FULL, or OUT_OF_MEMORY where the bytes could never fit.
// - Threads: thread-safe. Nothing waits.
// - Lifetime: what is held may outlive this object, but not the budget.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

enum class ByteKind : uint8_t {
  kRequest,  // an Infer, from its arrival to its answer
  kFrame,    // a stream's frame that has no answer yet
  kSweep,    // a frame that a stream keeps for later ones
  kAnswer,   // an answer that has not left
};
inline constexpr size_t kNumByteKinds = 4;

// Bytes that are held; they are given back when it ends. Moves, does not copy. A default one holds nothing.
class HeldBytes {
 public:
  HeldBytes() = default;
  HeldBytes(HeldBytes&& other) noexcept { *this = std::move(other); }
  HeldBytes& operator=(HeldBytes&& other) noexcept;
  ~HeldBytes() { Release(); }

  int64_t bytes() const { return bytes_; }
  void Release();

 private:
  friend class ByteLimits;
  struct Ledger;

  std::shared_ptr<Ledger> ledger_;  // null: nothing is held
  ByteKind kind_ = ByteKind::kRequest;
  std::string client_;
  int64_t bytes_ = 0;
  MemoryBudget::Reservation reservation_;
};

class ByteLimits {
 public:
  struct Options {
    // By kind. One alone may be larger, or it could never be served.
    std::array<int64_t, kNumByteKinds> max_bytes = {int64_t{4} << 30, int64_t{1} << 30, int64_t{4} << 30,
                                                    int64_t{2} << 30};
    int64_t max_client_bytes = int64_t{1} << 30;  // of all kinds together; likewise
    MemoryBudget* budget = nullptr;               // null: none is asked
  };

  explicit ByteLimits(const Options& options);

  // in_place_of: of the bytes that are held, those that give way to these. They do not count against these; until they
  // are given back, a limit may be exceeded by as many.
  absl::StatusOr<HeldBytes> Hold(ByteKind kind, const std::string& client, int64_t bytes, int64_t in_place_of = 0);

  int64_t held(ByteKind kind) const;

 private:
  const Options options_;
  const std::shared_ptr<HeldBytes::Ledger> ledger_;
};

}  // namespace voxserve
