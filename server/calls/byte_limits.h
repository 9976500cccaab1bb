#pragma once

// ByteLimits bounds the bytes that the services hold for their clients: requests, frames and sweeps (earlier frames) of
// streams, and unsent answers. Each byte counts against three limits: that of its kind, its client's for all kinds
// together, and the process's MemoryBudget.
//
// - Fair shares: in each kind, a client may hold at most as many bytes as then remain free. So a single client gets
//   half of the limit, and a client that needs little is admitted beside any number of clients that take all they can
//   get.
// - Networks: the addresses of a wider network (NetworksOf in server/sockets/peer.h) count together. In each kind, a
//   network may hold three times as many bytes as then remain free, the next wider one seven times, the widest IPv6
//   network 15 times. So an attacker with many addresses leaves a part to others, and a fleet of one network still gets
//   most of the limit. Clients that are known by a token or a certificate have no network.
// - Errors: RESOURCE_EXHAUSTED. The reason is CLIENT_LIMIT, with a retry delay, if the client or its network would
//   hold more than it may; QUEUE_FULL, with a retry delay, if all clients together would; OUT_OF_MEMORY if the bytes
//   could never fit into the MemoryBudget.
// - Threads: thread-safe. Nothing waits.
// - Lifetime: HeldBytes may outlive the ByteLimits, but not the MemoryBudget.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

// Counts bytes as held until Release or its destruction. Can be moved, not copied. A default HeldBytes holds nothing.
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
  std::vector<std::string> networks_;  // of the client
  int64_t bytes_ = 0;
  MemoryBudget::Reservation reservation_;
};

class ByteLimits {
 public:
  struct Options {
    // The limits by ByteKind. If nothing of a kind is held, one item may exceed its limit; otherwise it could never be
    // served.
    std::array<int64_t, kNumByteKinds> max_bytes = {int64_t{4} << 30, int64_t{1} << 30, int64_t{4} << 30,
                                                    int64_t{2} << 30};
    int64_t max_client_bytes = int64_t{1} << 30;  // of all kinds; one item may exceed it if the client holds no other
    MemoryBudget* budget = nullptr;               // null: no budget counts the bytes
  };

  explicit ByteLimits(const Options& options);

  // Holds bytes for a client (Caller::client). in_place_of: the number of held bytes of this kind and client that the
  // new ones will replace. The old bytes do not count against the limits, so old and new bytes together may exceed a
  // limit until the caller releases the old ones.
  absl::StatusOr<HeldBytes> Hold(ByteKind kind, const std::string& client, int64_t bytes, int64_t in_place_of = 0);

  int64_t held(ByteKind kind) const;

 private:
  const Options options_;
  const std::shared_ptr<HeldBytes::Ledger> ledger_;
};

}  // namespace voxserve
