#pragma once

// UploadGuard limits the memory of incomplete messages. If all clients together have too many bytes of them, it closes
// a connection of the client that has the most.
//
// gRPC 1.51.1 keeps the received part of a message until the message is complete, up to its memory quota. At the quota
// it closes connections, also those of other clients. Only gRPC knows which bytes it keeps. So the guard compares the
// bytes that the system has received over each connection with the messages that have arrived; the difference is
// unfinished. It is at most one message for each call that still reads.
//
// If a call ends without its message, the number of its bytes is unknown. They stay in the account while other calls of
// the connection read. The account therefore forgets over time: a client's whole share within `forget_time`.
//
// Threads: one thread of its own; any thread may call OnMessage and OnIdle. Hooks are called on the guard's thread and
// must return soon.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "server/sockets/peer.h"

namespace voxserve {

class UploadGuard {
 public:
  struct Options {
    int64_t max_bytes = int64_t{1536} << 20;           // unfinished bytes of all clients; no client is closed below it
    int64_t max_client_bytes = int64_t{512} << 20;     // a client with fewer bytes is never closed
    int64_t max_message_bytes = int64_t{64} << 20;     // most bytes of one call's message
    absl::Duration forget_time = absl::Seconds(60);    // the time in which max_client_bytes are forgotten
    absl::Duration interval = absl::Milliseconds(50);  // between looks, which take at most a tenth of the time
    // Returns, by peer (as in grpc::ServerContext::peer()), the bytes received over each connection since it began.
    std::function<std::map<std::string, int64_t>()> received_bytes;
    // Returns the client for which the peer's bytes count.
    std::function<std::string(const std::string& peer)> client_of = [](const std::string& peer) {
      return ClientOf(peer);
    };
    // Returns the number of the peer's calls that still read.
    std::function<int64_t(const std::string& peer)> num_reading;
    // The peer has the most unfinished bytes of the client that has the most. May be called again until the peer is
    // gone.
    std::function<void(const std::string& peer)> on_flood;
  };

  explicit UploadGuard(Options options);
  ~UploadGuard();
  UploadGuard(const UploadGuard&) = delete;
  UploadGuard& operator=(const UploadGuard&) = delete;

  // A whole message of this many bytes has arrived. is_first: it is the first of its call.
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
  // Forgets a part, and reports the largest client if there is too much.
  void Judge(absl::Duration since_last);

  const Options options_;
  std::map<std::string, Connection> connections_;  // by peer, at the last look; used by the thread only
  absl::Mutex mutex_;
  News news_ ABSL_GUARDED_BY(mutex_);  // since the last look
  SteadyNotification stopping_;
  std::thread thread_;
};

}  // namespace voxserve
