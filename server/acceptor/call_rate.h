#pragma once

// CallRate bounds how many calls a client may begin for nothing: calls that it resets at once, before their request has
// come or as soon as that is there, and calls that are refused because the client has more than its share. Such calls
// cost the server work and the client almost nothing ("rapid reset").
//
//   if (!call_rate.Spend(client)) acceptor.Close(peer, connection_reason::kUnfinishedCalls);
//
// Each client has a token bucket: `burst` tokens, refilled by `per_second` tokens a second. An unfinished call takes
// one, or a part of one where it has cost the client more. It remembers clients only while their buckets are not full,
// and a bounded number of them: beyond it, the client whose bucket is full soonest is forgotten. Thread-safe. Nothing
// waits.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace voxserve {

class CallRate {
 public:
  struct Options {
    int64_t burst = 1000;
    int64_t per_second = 100;
    int64_t max_clients = 10'000;  // that are remembered
    std::function<absl::Time()> now = absl::Now;
  };

  explicit CallRate(const Options& options) : options_(options) {}

  // Takes so many tokens of the client, which may be a part of one. False where it has less left: it has spent more
  // than its burst.
  bool Spend(const std::string& client, double tokens = 1);

  // Takes all tokens of the client.
  void SpendAll(const std::string& client);

  // Whether the client has half of its tokens. One whose connection was closed has to wait for them: otherwise each
  // new connection would bring what gRPC reads before it can be closed.
  bool HasTokens(const std::string& client) const;

  // Clients that are remembered.
  int64_t num_clients() const;

 private:
  // Sets when the client's bucket is full again. Forgets another's where there are too many.
  void Remember(const std::string& client, absl::Time full_at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const std::string& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  // A bucket is its time of being full again: so long ago, or so soon, as tokens are missing.
  std::unordered_map<std::string, absl::Time> full_at_ ABSL_GUARDED_BY(mutex_);              // by client
  std::set<std::pair<absl::Time, std::string>> clients_by_full_at_ ABSL_GUARDED_BY(mutex_);  // the same buckets
};

}  // namespace voxserve
