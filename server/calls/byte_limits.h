#pragma once

// ByteLimits bounds the bytes that the services hold for their clients: requests, frames and sweeps of streams, and
// unsent answers. A byte counts three times: against the limit of its kind, against its client's share of all kinds
// together, and against the process's MemoryBudget.
//
// - Fair shares: of each kind, a client may hold as many bytes as it leaves free. So a single client gets half of the
//   limit, and a client that needs little is admitted beside any number of clients that take all they can get.
// - Errors: RESOURCE_EXHAUSTED with a retry delay. The reason is CLIENT_LIMIT if the client would exceed its share,
//   OUT_OF_MEMORY if the bytes could never fit, else QUEUE_FULL.
// - Threads: thread-safe. Nothing waits.
// - Lifetime: HeldBytes may outlive this object, but not the budget.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

enum class ByteKind : uint8_t {
  kRequest,  // an Infer request, from its arrival to its answer
  kFrame,    // a stream's frame without an answer yet
  kSweep,    // a frame that a stream keeps for later frames
  kAnswer,   // an answer that is not sent completely
};
inline constexpr size_t kNumByteKinds = 4;

// Bytes that are counted as held until it ends. Moves, does not copy. A default one holds nothing.
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
    // By kind. A single item may exceed its limit if it is alone, or it could never be served.
    std::array<int64_t, kNumByteKinds> max_bytes = {int64_t{4} << 30, int64_t{1} << 30, int64_t{4} << 30,
                                                    int64_t{2} << 30};
    int64_t max_client_bytes = int64_t{1} << 30;  // all kinds together; a single item alone may exceed it
    MemoryBudget* budget = nullptr;               // null: no budget counts the bytes
  };

  explicit ByteLimits(const Options& options);

  // Holds bytes for a client. in_place_of: held bytes that these will replace. They do not count against the limits,
  // which may be exceeded by as many until they are given back.
  absl::StatusOr<HeldBytes> Hold(ByteKind kind, const std::string& client, int64_t bytes, int64_t in_place_of = 0);

  int64_t held(ByteKind kind) const;

 private:
  const Options options_;
  const std::shared_ptr<HeldBytes::Ledger> ledger_;
};

}  // namespace voxserve
