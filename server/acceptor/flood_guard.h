#pragma once

// FloodGuard finds connections whose calls arrive faster than the server can even refuse them. It reports them to its
// owner, the server, which closes them.
//
// gRPC 1.51.1 takes calls from a connection as long as bytes arrive, before it passes on the first call. A client that
// opens and resets calls without a pause ("rapid reset", CVE-2023-44487) so fills the memory with calls that no service
// has seen, 14 KiB each. The guard watches the process's memory. If the part that is not accounted for grows by more
// than `trigger_bytes`, the guard compares two numbers for each connection: the HTTP/2 streams that it has started
// (counted by gRPC's channelz; each is a call), and the calls that the services have seen.
//
// Threads: the guard has one thread; any thread may call OnCall. The hooks of Options are called on the guard's thread
// and must return soon.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/periodic_thread.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class FloodGuard {
 public:
  struct Options {
    int64_t trigger_bytes = int64_t{96} << 20;  // growth of the memory that is not accounted for
    int64_t max_unseen_calls = 1024;            // of one connection, since the first look at it
    absl::Duration interval = absl::Milliseconds(20);
    // Return, in bytes, the resident memory of the process and the part of it that is accounted for (the server's
    // memory budget knows its use).
    std::function<int64_t()> resident_bytes;
    std::function<int64_t()> accounted_bytes;
    // Returns, by peer (as in grpc::ServerContext::peer()), the streams that each connection has started since it
    // began.
    std::function<std::map<std::string, int64_t>()> streams_started;
    // Called with a peer to close: it has more than max_unseen_calls calls that no service has seen. It may be called
    // again until the peer is gone.
    std::function<void(const std::string& peer)> on_flood;
    std::function<absl::Time()> now = SteadyNow;  // the clock of calm seconds and of the pauses between looks
  };

  explicit FloodGuard(Options options);

  // Tells that a service has seen a call of the peer. Costs nothing unless the guard is looking at connections.
  void OnCall(const std::string& peer);

 private:
  struct Connection {
    int64_t started = 0;  // streams at the last look
    int64_t unseen = 0;   // streams that no service has seen
  };

  int64_t UnaccountedBytes() const { return options_.resident_bytes() - options_.accounted_bytes(); }
  // Looks at the memory, and at the connections if it has grown.
  void LookAtMemory();
  // Looks at every connection. The first look of a series only stores the counts.
  void Look() ABSL_LOCKS_EXCLUDED(mutex_);
  void StopLooking() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  // Only the thread uses these five.
  int64_t calm_bytes_;         // the unaccounted bytes in a calm second
  int64_t second_began_with_;  // the unaccounted bytes at second_began_
  absl::Time second_began_ = options_.now();
  absl::Time next_look_ = absl::InfinitePast();
  std::map<std::string, Connection> connections_;  // by peer, at the last look
  std::atomic<bool> is_looking_{false};
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, int64_t> seen_ ABSL_GUARDED_BY(mutex_);  // calls by peer since the last look
  PeriodicThread thread_;
};

// Returns, by peer, the streams that channelz counts for the gRPC servers of this process. Serves as
// Options::streams_started.
std::map<std::string, int64_t> StreamsStarted();

}  // namespace voxserve
