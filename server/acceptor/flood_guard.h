#pragma once

// FloodGuard finds connections that bring calls faster than the server can even refuse them, and has them closed.
//
// gRPC 1.51.1 takes calls from a connection for as long as that brings bytes, before it tells of the first of them. A
// client that opens and resets calls without a pause ("rapid reset", CVE-2023-44487) fills the memory with calls that
// no service has seen, at 14 KiB each. The guard watches the process's memory. When that grows by more than is
// accounted for, it compares the streams that each connection has started, as gRPC's channelz counts them, with the
// calls that the services were told of.
//
// Threads: one thread of its own; OnCall comes from any. The hooks are called on the thread and must not block for
// long.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace voxserve {

class FloodGuard {
 public:
  struct Options {
    int64_t trigger_bytes = int64_t{96} << 20;  // growth of the memory that nobody accounts for
    int64_t max_unseen_calls = 1024;            // of one connection, since the first look at it
    absl::Duration interval = absl::Milliseconds(20);
    // Resident memory of the process, and what of it is accounted for; bytes.
    std::function<int64_t()> resident_bytes;
    std::function<int64_t()> accounted_bytes;
    // By peer, as grpc::ServerContext::peer() says it: streams that the connection has started since it began.
    std::function<std::map<std::string, int64_t>()> streams_started;
    std::function<void(const std::string& peer)> on_flood;
  };

  explicit FloodGuard(Options options);
  ~FloodGuard();
  FloodGuard(const FloodGuard&) = delete;
  FloodGuard& operator=(const FloodGuard&) = delete;

  // The services were told of a call. Costs nothing but while the guard looks at connections.
  void OnCall(const std::string& peer);

 private:
  struct Connection {
    int64_t started = 0;  // streams, at the last look
    int64_t unseen = 0;   // of them, those that the services were not told of
  };

  void Run();
  // Looks at every connection. The first look of a series only remembers.
  void Look() ABSL_LOCKS_EXCLUDED(mutex_);
  void StopLooking() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  std::map<std::string, Connection> connections_;  // by peer, of the last look; the thread's
  std::atomic<bool> is_looking_{false};
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, int64_t> seen_ ABSL_GUARDED_BY(mutex_);  // calls by peer, since the last look
  absl::Notification stopping_;
  std::thread thread_;
};

// For Options::streams_started: what channelz says of the servers of this process.
std::map<std::string, int64_t> StreamsStarted();

}  // namespace voxserve
