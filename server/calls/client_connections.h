#pragma once

// ClientConnections knows over which connections each client (Caller::client) calls, so that what a client has left at
// the server can end with its last connection.
//
// Threads: thread-safe. Times are of SteadyNow.

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

class ClientConnections {
 public:
  // Tells that the client has made a call over the connection of this peer.
  void OnCall(const std::string& client, const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells that the connection has ended. Returns the clients that have no other connection.
  std::vector<std::string> OnGone(const std::string& peer, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns true, and forgets the client, if it has had no connection since this time or longer.
  bool ForgetGone(const std::string& client, absl::Time since) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Client {
    absl::flat_hash_set<std::string> peers;
    absl::Time gone_at;  // when the last of them ended; means nothing while there are peers
  };

  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Client> clients_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, absl::flat_hash_set<std::string>> by_peer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
