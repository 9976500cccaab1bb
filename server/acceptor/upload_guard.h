#pragma once

// UploadGuard watches how much has come of messages that are not whole. When that is too much in all, it finds the
// client that holds the most of it, and has a connection of it closed.
//
// gRPC 1.51.1 keeps what has come of a message until it is whole, up to its quota of memory; then it closes
// connections, those of others as well. Nobody but gRPC knows what it keeps. The guard compares what the system has
// received over each connection with the messages that came of it: the rest is unfinished. It is no more than a message
// for each call that still reads.
//
// What came of a call that ended without its message stays in the account, since nobody knows how much it was, as far
// as other calls of the connection read. So the account forgets: a client's whole share within `forget_time`.
//
// Threads: one thread of its own; OnMessage and OnIdle come from any. The hooks are called on the thread and must not
// block for long.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace voxserve {

class UploadGuard {
 public:
  struct Options {
    int64_t max_bytes = int64_t{1536} << 20;           // unfinished, of all clients; up to it nobody has too many
    int64_t max_client_bytes = int64_t{512} << 20;     // beyond it: of all connections of a client
    int64_t max_message_bytes = int64_t{64} << 20;     // of which one call holds no more
    absl::Duration forget_time = absl::Seconds(60);    // of as many bytes
    absl::Duration interval = absl::Milliseconds(50);  // between looks, which take at most the tenth part of the time
    // By peer, as grpc::ServerContext::peer() says it: bytes that came over the connection since it began.
    std::function<std::map<std::string, int64_t>()> received_bytes;
    // Calls of the peer that still read.
    std::function<int64_t(const std::string& peer)> num_reading;
    // The peer has the most unfinished bytes of the client that has the most. It may come again until the peer is gone.
    std::function<void(const std::string& peer)> on_flood;
  };

  explicit UploadGuard(Options options);
  ~UploadGuard();
  UploadGuard(const UploadGuard&) = delete;
  UploadGuard& operator=(const UploadGuard&) = delete;

  // A message of so many bytes has come whole. is_first: of its call.
  void OnMessage(const std::string& peer, int64_t bytes, bool is_first);
  // No call of the peer reads any more.
  void OnIdle(const std::string& peer);

 private:
  struct Connection {
    int64_t received = 0;  // at the last look
    double unfinished = 0;
  };
  struct News {
    absl::flat_hash_map<std::string, int64_t> message_bytes;  // by peer
    absl::flat_hash_set<std::string> idle;
  };

  void Run();
  void Look(absl::Duration since_last) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets, and reports who has the most where it is too much.
  void Judge(absl::Duration since_last);

  const Options options_;
  std::map<std::string, Connection> connections_;  // by peer, of the last look; the thread's
  absl::Mutex mutex_;
  News news_ ABSL_GUARDED_BY(mutex_);  // since the last look
  absl::Notification stopping_;
  std::thread thread_;
};

}  // namespace voxserve
