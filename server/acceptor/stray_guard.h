#pragma once

// StrayGuard finds connections that bring bytes of no use: bytes that belong to no call and to no message. It reports
// them to its owner, the server, which closes them.
//
// A client needs no token to send HTTP/2 frames, and gRPC 1.51.1 limits few of them. It keeps a header block that never
// ends (CVE-2023-33953), and it takes SETTINGS, GOAWAY or unknown frames for as long as they come, while nobody else is
// served. No call tells of such bytes. So the guard compares, for each connection, the bytes that gRPC has read with
// those that the following accounts for:
// - a call that came to be known: its headers, kCallBytes;
// - a message that has arrived: its bytes and what frames, padding and TLS add to them;
// - the bytes that the server has sent: for WINDOW_UPDATE frames and the like, a sixteenth;
// - time: for pings, kBytesPerSecond.
// The rest is stray. It is never less than 0: nobody can pay for stray bytes in advance.
//
// Constraints on stray bytes:
// - A connection may have kConnectionBytes, and kSmallMessageBytes for each call of kind kInfo that still reads its
//   message. For each other call that still reads (an upload), it may have max_call_bytes more, up to max_upload_bytes
//   in all: a message, or several small ones that a stream's client has sent ahead.
// - gRPC may read a whole upload before it tells of the call. So only bytes count that gRPC had read kLooksToWait looks
//   ago. Beyond max_call_bytes more than the connection may have, the guard does not wait.
// - A call can end before its message is complete. Its bytes then stay stray for ever, though the client did nothing
//   wrong. The guard forgives them, up to max_call_bytes a call. Forgiven bytes take from an allowance of the
//   client: max_client_bytes, refilled by kRefillBytesPerSecond, and by the bytes of messages that arrive.
// - The stray bytes of a connection that its client closes take from the same allowance. Who then has little of it left
//   is reported, so that nobody gains by many short connections.
//
// While a client has an open upload, its useless bytes are hard to tell from those of the upload. So there is a second
// rule: if one of gRPC's threads has been busy for kMostBusyTime, by kBusyShare of the time, no call and no message of
// anybody has come to be known, and all connections together have moved fewer bytes than kBytesPerCpuSecond, then the
// connections that brought bytes meanwhile are ended if they have more than kConnectionBytes of old stray bytes. If
// none did, gRPC works on what it has read before (it reads a header from its beginning again with each frame), and the
// connection with the most stray bytes is ended.
//
// Memory: a look that throws std::bad_alloc has lost some of the calls and messages that came to be known before it. So
// the next look counts no bytes; it only stores the traffic from which later looks count.
//
// Threads: Look is called by one thread at a time; any thread may call OnCall and OnMessage. The hooks of Options are
// called by Look and must return soon.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/acceptor/poller_threads.h"
#include "server/sockets/peer.h"
#include "server/sockets/socket_traffic.h"

namespace voxserve {

class StrayGuard {
 public:
  static constexpr int64_t kConnectionBytes = 64 << 10;
  static constexpr int64_t kSmallMessageBytes = 64 << 10;
  static constexpr int64_t kCallBytes = 8 << 10;  // gRPC refuses calls with more headers
  // Stray bytes of a closed connection that cost its client nothing.
  static constexpr int64_t kHandshakeBytes = 8 << 10;
  static constexpr double kBytesPerSecond = 64;  // a ping over TLS every second
  static constexpr int kLooksToWait = 5;
  static constexpr double kRefillBytesPerSecond = 8 << 20;
  static constexpr absl::Duration kMostBusyTime = absl::Milliseconds(350);
  static constexpr double kBusyShare = 0.8;
  // gRPC takes 900 MB of messages of 60 MB in a second, and 500 MB over TLS, of GOAWAY frames 30 MB.
  static constexpr double kBytesPerCpuSecond = 200e6;

  // Calls of a peer that still read their message.
  struct Reading {
    int64_t uploads = 0;  // those whose message may have max_call_bytes
    int64_t small = 0;    // those of kind kInfo
  };
  struct Options {
    int64_t max_call_bytes = int64_t{64} << 20;  // that gRPC takes of one call before it tells of them
    int64_t max_upload_bytes = int64_t{1024} << 20;
    int64_t max_client_bytes = int64_t{1024} << 20;
    // Returns the client for which the peer's bytes count.
    std::function<std::string(const std::string& peer)> client_of = [](const std::string& peer) {
      return ClientOf(peer);
    };
    std::function<Reading(const std::string& peer)> reading;
    // Returns how busy gRPC's threads were since the last call.
    std::function<PollerThreads::Use()> threads;
    // Called once with a peer that has too many stray bytes. bytes: those that no call can have left; 0 if all may be
    // of ended calls. The peer may have closed its connection by itself: its client has then left too many stray bytes
    // behind.
    std::function<void(const std::string& peer, int64_t bytes)> on_flood;
  };

  explicit StrayGuard(Options options) : options_(std::move(options)) {}

  // Tells that a call of the peer has become known.
  void OnCall(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells that a whole message of this many bytes has arrived.
  void OnMessage(const std::string& peer, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes what OnCall and OnMessage have told since the last look. Called before the traffic of that look is measured,
  // so that the traffic includes the bytes of these calls and messages.
  void BeginLook() ABSL_LOCKS_EXCLUDED(mutex_);
  // Judges all connections. traffic: of every open connection, by peer (as in grpc::ServerContext::peer()), and the
  // last traffic of those that were closed since the last look. now: by a clock that never goes back.
  void Look(const std::map<std::string, SocketTraffic>& traffic, absl::Time now);

 private:
  struct Connection {
    SocketTraffic traffic;  // at the last look
    double stray = 0;
    // Bytes read between the last looks, a ring. Stray bytes are the oldest ones that nothing accounts for.
    std::array<double, kLooksToWait> recent = {};
    double allowed = kConnectionBytes;  // the stray bytes that it may have now
    double forgivable = 0;              // the stray bytes that its calls may have left, those that have ended too
    double old = 0;                     // the stray bytes that had been read kLooksToWait looks ago
    absl::Time brought_at = absl::InfinitePast();  // the last look that found new bytes
    bool is_reported = false;
  };
  struct News {
    int64_t calls = 0;
    double messages = 0;        // bytes that arrived messages account for
    int64_t message_bytes = 0;  // of these messages
  };

  // Gives the clients back what time and arrived messages refill.
  void EarnBack(absl::Duration elapsed);
  // Returns the bytes that the connection has brought and got since the last look.
  double Update(const std::string& peer, const SocketTraffic& traffic, const News& news, absl::Duration elapsed,
                Connection& connection) const;
  // Returns the stray bytes that the connection may have now.
  double Allowed(const std::string& peer) const;
  void Judge(const std::string& peer, Connection& connection);
  void JudgeClosed(const std::string& peer, const Connection& connection);
  // Reports who keeps all threads busy.
  void JudgeBusyThreads(absl::Time now);
  void Report(const std::string& peer, double bytes, Connection& connection) const;
  static bool IsSuspect(const Connection& connection);

  const Options options_;
  // The looks alone use these members.
  std::map<std::string, Connection> connections_;  // by peer, at the last look
  std::map<std::string, double> used_;             // of max_client_bytes, by client; only those above 0
  absl::flat_hash_map<std::string, News> looked_at_;
  bool is_whole_ = true;  // the last look has taken all connections into account
  bool counts_ = true;    // the look before this one was whole
  absl::Time last_look_ = absl::InfiniteFuture();
  int turn_ = 0;  // where in `recent` this look writes
  // Since then there have been suspects, and no call and no message. The last call of `threads` was at that time.
  absl::Time quiet_since_ = absl::InfiniteFuture();
  double quiet_bytes_ = 0;  // that all connections have brought and got since then
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, News> news_ ABSL_GUARDED_BY(mutex_);  // by peer, since the last look
};

}  // namespace voxserve
