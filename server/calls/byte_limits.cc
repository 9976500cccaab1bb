#include "server/calls/byte_limits.h"

#include <numeric>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error_reason.h"
#include "server/sockets/peer.h"

namespace voxserve {
namespace {

using ByKind = std::array<int64_t, kNumByteKinds>;

bool Exceeds(int64_t held, int64_t more, int64_t limit) { return held > 0 && held + more > limit; }

MemoryBudget::Use UseOf(ByteKind kind) {
  switch (kind) {
    case ByteKind::kRequest:
    case ByteKind::kFrame:
      break;
    case ByteKind::kSweep:
      return MemoryBudget::Use::kSweeps;
    case ByteKind::kAnswer:
      return MemoryBudget::Use::kAnswers;
  }
  return MemoryBudget::Use::kRequests;
}

const char* NameOf(ByteKind kind) {
  switch (kind) {
    case ByteKind::kRequest:
      return "requests";
    case ByteKind::kFrame:
      return "streams' frames";
    case ByteKind::kSweep:
      return "sweeps";
    case ByteKind::kAnswer:
      break;
  }
  return "unread answers";
}

absl::Status KindIsFull(ByteKind kind, int64_t held, int64_t more, int64_t limit) {
  switch (kind) {
    case ByteKind::kRequest:
      return QueueFullError(absl::StrCat("requests of ", held, " bytes are held; with ", more,
                                         " more they exceed the server's limit of ", limit));
    case ByteKind::kFrame:
      return QueueFullError(absl::StrCat("frames of ", held, " bytes wait in all streams; with ", more,
                                         " more they exceed the server's limit of ", limit, " (--max_queue_bytes)"));
    case ByteKind::kSweep:
      return QueueFullError(absl::StrCat("all streams together keep sweeps of ", held, " bytes; with ", more,
                                         " more they exceed the server's limit of ", limit));
    case ByteKind::kAnswer:
      break;
  }
  return QueueFullError(absl::StrCat("answers of ", held, " bytes wait for their clients to read them; with ", more,
                                     " more they exceed the server's limit of ", limit, " (--grpc_memory_bytes)"));
}

}  // namespace

struct HeldBytes::Ledger {
  absl::Mutex mutex;
  ByKind by_kind ABSL_GUARDED_BY(mutex) = {};
  absl::flat_hash_map<std::string, ByKind> by_client ABSL_GUARDED_BY(mutex);  // only clients that hold bytes
  // Only networks whose clients hold bytes, or for which there was no memory.
  absl::flat_hash_map<std::string, ByKind> by_network ABSL_GUARDED_BY(mutex);
};

HeldBytes& HeldBytes::operator=(HeldBytes&& other) noexcept {
  if (this == &other) return *this;
  Release();
  ledger_ = std::move(other.ledger_);
  kind_ = other.kind_;
  client_ = std::move(other.client_);
  networks_ = std::move(other.networks_);
  bytes_ = std::exchange(other.bytes_, 0);
  reservation_ = std::move(other.reservation_);
  return *this;
}

void HeldBytes::Release() {
  if (ledger_ == nullptr) return;
  {
    absl::MutexLock lock(&ledger_->mutex);
    ledger_->by_kind[static_cast<size_t>(kind_)] -= bytes_;
    const auto client = ledger_->by_client.find(client_);
    client->second[static_cast<size_t>(kind_)] -= bytes_;
    if (client->second == ByKind()) ledger_->by_client.erase(client);
    for (const std::string& name : networks_) {
      const auto network = ledger_->by_network.find(name);
      network->second[static_cast<size_t>(kind_)] -= bytes_;
      if (network->second == ByKind()) ledger_->by_network.erase(network);
    }
  }
  reservation_.Release();
  ledger_.reset();
  bytes_ = 0;
}

ByteLimits::ByteLimits(const Options& options) : options_(options), ledger_(std::make_shared<HeldBytes::Ledger>()) {}

absl::StatusOr<HeldBytes> ByteLimits::Hold(ByteKind kind, const std::string& client, int64_t bytes,
                                           int64_t in_place_of) {
  if (bytes == 0) return HeldBytes();
  MemoryBudget::Reservation reservation;
  if (options_.budget != nullptr) {
    absl::StatusOr<MemoryBudget::Reservation> reserved = options_.budget->Reserve(UseOf(kind), bytes, in_place_of);
    if (!reserved.ok()) return reserved.status();
    reservation = *std::move(reserved);
  }
  absl::MutexLock lock(&ledger_->mutex);
  const auto index = static_cast<size_t>(kind);
  int64_t& of_kind = ledger_->by_kind[index];
  const int64_t limit = options_.max_bytes[index];
  if (Exceeds(of_kind - in_place_of, bytes, limit)) return KindIsFull(kind, of_kind, bytes, limit);
  const auto found = ledger_->by_client.find(client);
  const ByKind by_kind = found == ledger_->by_client.end() ? ByKind() : found->second;
  const int64_t of_client = std::accumulate(by_kind.begin(), by_kind.end(), int64_t{0});
  if (Exceeds(of_client - in_place_of, bytes, options_.max_client_bytes)) {
    return ClientLimitError(absl::StrCat("the server holds ", of_client, " bytes for this client; with ", bytes,
                                         " more they exceed a client's share of ", options_.max_client_bytes));
  }
  const int64_t left = limit - (of_kind - in_place_of + bytes);
  if (bytes > in_place_of && Exceeds(by_kind[index] - in_place_of, bytes, left)) {
    return ClientLimitError(absl::StrCat("of the ", limit, " bytes of ", NameOf(kind), " that the server may hold, ",
                                         by_kind[index], " are this client's; with ", bytes,
                                         " more it would have more than it leaves to others"));
  }
  HeldBytes held;
  held.client_ = client;
  held.networks_ = NetworksOf(client);
  int64_t times = 1;
  for (auto name = held.networks_.rbegin(); name != held.networks_.rend(); ++name) {  // the narrowest first
    times = 2 * times + 1;
    const auto network = ledger_->by_network.find(*name);
    const int64_t of_network = network == ledger_->by_network.end() ? 0 : network->second[index];
    if (bytes > in_place_of && Exceeds(of_network - in_place_of, bytes, times * left)) {
      return ClientLimitError(absl::StrCat("of the ", limit, " bytes of ", NameOf(kind), " that the server may hold, ",
                                           of_network, " are those of the network ", *name, "; with ", bytes,
                                           " more it would leave too little to others"));
    }
  }
  for (const std::string& name : held.networks_) ledger_->by_network.try_emplace(name);
  ledger_->by_client[client][index] += bytes;
  // From here on nothing is allocated, so nothing can fail.
  for (const std::string& name : held.networks_) ledger_->by_network.find(name)->second[index] += bytes;
  of_kind += bytes;
  held.ledger_ = ledger_;
  held.kind_ = kind;
  held.bytes_ = bytes;
  held.reservation_ = std::move(reservation);
  return held;
}

int64_t ByteLimits::held(ByteKind kind) const {
  absl::MutexLock lock(&ledger_->mutex);
  return ledger_->by_kind[static_cast<size_t>(kind)];
}

}  // namespace voxserve
