#pragma once

// CallRate limits the useless calls of a client: calls that it resets at once, before their request has arrived or
// right after, and calls that are refused because the client uses more than its share. Such calls cost the server work
// and the client almost nothing ("rapid reset").
//
//   if (!call_rate.Spend(client)) acceptor.Close(peer, connection_reason::kUnfinishedCalls);
//
// Each client has a token bucket with `burst` tokens, refilled by `per_second` tokens per second. A useless call takes
// one token. It takes only a fraction of a token if it cost the client something too, such as sending a whole request.
// The owner may give tokens back for what a client has sent (Earn).
// Only clients whose buckets are not full are remembered, at most max_clients of them. If there are more, the client
// whose bucket will be full first is forgotten.
//
// Thread-safe. No function waits.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class CallRate {
 public:
  struct Options {
    int64_t burst = 1000;
    int64_t per_second = 100;
    int64_t max_clients = 10'000;  // most clients that are remembered
    std::function<absl::Time()> now = SteadyNow;
  };

  explicit CallRate(const Options& options) : options_(options) {}

  // Takes `tokens` tokens from the client's bucket. Returns false, and takes none, if the bucket holds fewer: the
  // client has then spent more than its burst.
  bool Spend(const std::string& client, double tokens = 1);

  // Gives the client's bucket tokens back, up to a full bucket.
  void Earn(const std::string& client, double tokens);

  // Takes all tokens from the client's bucket.
  void SpendAll(const std::string& client);

  // Returns true if the client's bucket is at least half full. Until then the server accepts no new connection of the
  // client. gRPC reads some bytes of every connection before the server can close it, so a client that connected again
  // at once could go on costing work.
  bool HasTokens(const std::string& client) const;

  // Returns the number of remembered clients.
  int64_t num_clients() const;

 private:
  // Sets the time when the client's bucket is full again. Forgets another client if max_clients are remembered already.
  void Remember(const std::string& client, absl::Time full_at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const std::string& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  // A bucket is stored as the time when it is full again; the time until then gives the number of missing tokens.
  std::unordered_map<std::string, absl::Time> full_at_ ABSL_GUARDED_BY(mutex_);              // by client
  std::set<std::pair<absl::Time, std::string>> clients_by_full_at_ ABSL_GUARDED_BY(mutex_);  // the same buckets
};

}  // namespace voxserve
