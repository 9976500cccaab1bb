#pragma once

// UploadGuard limits the memory that gRPC uses for incomplete messages. If all clients together have too many
// unfinished bytes (bytes of such messages), it reports a connection of the client that has the most, and its owner,
// the server, closes this connection.
//
// gRPC 1.51.1 keeps the received part of a message until the message is complete, up to its memory quota. At the quota
// gRPC closes connections, also those of other clients. Only gRPC knows which bytes it keeps. So the guard subtracts,
// for each connection, the bytes of the messages that have arrived from the bytes that the system has received. The
// difference counts as unfinished, up to max_call_bytes for each call that still reads.
//
// If a call ends before its message is complete, the guard does not learn how many bytes the call had sent. They count
// as unfinished while other calls of the connection read. The guard therefore forgets bytes over time:
// `max_client_bytes` of each client within `forget_time`.
//
// Memory: a look that throws std::bad_alloc has lost some of the messages that had arrived before it. So the next look
// counts no bytes; it only stores the traffic from which later looks count.
//
// Threads: the guard has one thread, which looks at the connections; any thread may call OnMessage and OnIdle. The
// hooks of Options are called on the guard's thread and must return soon.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/periodic_thread.h"
#include "engine/base/steady_time.h"
#include "server/sockets/peer.h"
#include "server/sockets/socket_traffic.h"

namespace voxserve {

class UploadGuard {
 public:
  struct Options {
    int64_t max_bytes = int64_t{1536} << 20;           // of all clients; on_flood is not called below it
    int64_t max_client_bytes = int64_t{512} << 20;     // on_flood is not called for a client below it
    int64_t max_call_bytes = int64_t{64} << 20;        // that gRPC may hold of one call
    absl::Duration forget_time = absl::Seconds(60);    // time to forget max_client_bytes of a client
    absl::Duration interval = absl::Milliseconds(50);  // between two looks; slow looks lengthen it
    // Returns, by peer (as in grpc::ServerContext::peer()), the traffic of each connection since it began.
    std::function<std::map<std::string, SocketTraffic>()> traffic;
    // Returns the client for which the peer's bytes count.
    std::function<std::string(const std::string& peer)> client_of = [](const std::string& peer) {
      return ClientOf(peer);
    };
    // Returns the number of the peer's calls that still read.
    std::function<int64_t(const std::string& peer)> num_reading;
    // Called when the unfinished bytes exceed max_bytes, with a peer to close: of the client with the most unfinished
    // bytes, the connection with the most. It may be called again until the peer is gone.
    std::function<void(const std::string& peer)> on_flood;
  };

  explicit UploadGuard(Options options);

  // Tells that a whole message of this many bytes has arrived. is_first: the message is the first of its call.
  void OnMessage(const std::string& peer, int64_t bytes, bool is_first);
  // Tells that no call of the peer reads any more, so that the peer has no unfinished bytes.
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

  void Look() ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets a part of the unfinished bytes that the last look found. Called before new bytes are counted: a look that
  // comes late would otherwise count old bytes that should be forgotten by then.
  void Forget(absl::Duration since_last);
  // Calls on_flood if there are too many unfinished bytes.
  void Judge() const;

  const Options options_;
  // Only the thread uses these three.
  bool is_whole_ = true;                           // the last look has taken all connections into account
  std::map<std::string, Connection> connections_;  // by peer, at the last look
  absl::Time last_look_ = SteadyNow();
  absl::Mutex mutex_;
  News news_ ABSL_GUARDED_BY(mutex_);  // since the last look
  PeriodicThread thread_;
};

}  // namespace voxserve
