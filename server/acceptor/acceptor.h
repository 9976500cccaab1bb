#pragma once

// The acceptor takes connections from the network and hands them to gRPC, one by one and within limits. gRPC 1.51.1's
// own listener does neither: it stops for good when descriptors run out (CVE-2023-4785), and holds as many silent
// connections as there are descriptors.
//
// - A connection goes to gRPC when the first bytes of HTTP/2 have come from the client. Until then it costs one
//   descriptor and no memory of gRPC. Other bytes, or none in time, close it.
// - Connections are bounded, in all and for one client (an address). Beyond a bound, a connection that still waits for
//   its first bytes gives way to a new one. Beyond that in all, so does the oldest connection without work (requests
//   and streams) of the client that has the most, if the new one's client stays below it; for a client that has no
//   connection yet, the oldest with work does, too. Where nothing gives way, the new one is closed.
// - When descriptors run out, a new connection is closed with the help of a spare descriptor; listening goes on.
//
// Use: Listen; grpc::ServerBuilder::experimental().AddExternalConnectionAcceptor(FROM_FD, credentials); BuildAndStart;
// Start; ...; Stop; grpc::Server::Shutdown; destroy in any order.
//
// Threads: one thread of its own accepts and watches; it never waits for a client. Start, Stop and the destructor are
// the owner's; the rest is thread-safe. Hooks are called without a lock, from that thread or from Close's caller.
//
// Facts about gRPC 1.51.1 that it builds on (from its sources; acceptor_grpc_test shows those that can be seen):
// - gRPC calls shutdown(SHUT_RDWR) when it lets go of a connection: the acceptor's own duplicate of the descriptor sees
//   EPOLLHUP. gRPC closes its descriptor when the last call of the connection has ended, which may be later.
// - The duplicate keeps the socket in gRPC's epoll set a little longer than gRPC expects. Events that come then are
//   harmless: gRPC never frees a grpc_fd while it runs, and bears events without a cause.
// - HandleNewConnection neither closes nor serves a descriptor before the server has started or after its shutdown has
//   begun: so Start comes after BuildAndStart, Stop before Shutdown.
// - gRPC's own listener has TCP_NODELAY, and TCP_USER_TIMEOUT where keepalive is set; accepted sockets inherit them. On
//   descriptors from outside gRPC sets neither. The acceptor's listener has both.
// - A connection that sends the first bytes and no SETTINGS frame is closed after GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS
//   (120 s by default).
// - grpc::ServerContext::peer() is what PeerOf (server/sockets/peer.h) gives.
// - gRPC ends a connection when its client has shut down the sending side; the acceptor does not.

#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "server/sockets/descriptor.h"

namespace voxserve {

// Why the acceptor closed a connection: a small set, for metrics and logs.
namespace connection_reason {
inline constexpr std::string_view kConnectionLimit = "CONNECTION_LIMIT";  // too many in all
inline constexpr std::string_view kClientLimit = "CLIENT_LIMIT";          // too many of one client
inline constexpr std::string_view kNoDescriptors = "NO_DESCRIPTORS";
inline constexpr std::string_view kNoFirstBytes = "NO_FIRST_BYTES";       // they did not come in time
inline constexpr std::string_view kNotHttp2 = "NOT_HTTP2";                // the first bytes are others
inline constexpr std::string_view kUnfinishedCalls = "UNFINISHED_CALLS";  // for Close: CallRate and both guards
}  // namespace connection_reason

class Acceptor {
 public:
  struct Options {
    std::string host = "0.0.0.0";  // "0.0.0.0" and "::" mean every address, see ListenOn
    int port = 0;                  // 0: any
    // Connections at a time. 0: as many as DescriptorLimit has room for, two descriptors each, with a reserve for files
    // and HTTP; at most 10,000.
    int64_t max_connections = 0;
    // The same of one client. 0: a quarter of max_connections, for many vehicles may stand behind one address.
    int64_t max_client_connections = 0;
    absl::Duration first_bytes_timeout = absl::Seconds(10);
    // TCP_USER_TIMEOUT: sent bytes that are not acknowledged for so long end the connection. 0: the system's (minutes).
    absl::Duration unacknowledged_timeout = absl::Seconds(20);
    // Whether the client may connect now; others are refused. Called for every arrival. Empty: all may.
    std::function<bool(const std::string& client)> is_welcome;
    // Whether the peer has work here, so that its connection is the last to give way to another. Empty: it has none.
    std::function<bool(const std::string& peer)> has_work;
    // Called when the acceptor closes a connection, at its arrival or later; reason: of connection_reason, or Close's.
    std::function<void(std::string_view reason)> on_closed;
    // Called with the number of open connections whenever it changes.
    std::function<void(int64_t open)> on_open_connections;
  };

  // Binds and listens; connections wait in the system's queue until Start. UNAVAILABLE as ListenError says.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const Options& options);

  // Stops, then gives up its duplicates: connections that gRPC holds stay with gRPC.
  ~Acceptor();

  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }
  int64_t max_connections() const { return options_.max_connections; }
  int64_t max_client_connections() const { return options_.max_client_connections; }

  // Accepts from now on, for a grpc::Server that has started. Once.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc);

  // Closes the listening sockets and the connections that gRPC does not have yet. The others stay, and can be closed.
  // When it returns, gRPC gets no further connection.
  void Stop();

  // Ends the peer's connection at once: its calls are cancelled, and what the client has not read is dropped.
  // peer: from grpc::ServerContext::peer(). False where it has no open connection, or Close has ended it before.
  bool Close(const std::string& peer, std::string_view reason);

  // By peer: bytes that came over each connection that gRPC has, since it began.
  std::map<std::string, int64_t> ReceivedBytesByPeer() const;

  // Connections that neither gRPC nor the client has ended, those that wait for first bytes included.
  int64_t open_connections() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Id = uint64_t;  // of a connection; grows with every arrival, never used twice

  struct Connection {
    Descriptor socket;  // what the acceptor watches; gRPC has a duplicate
    std::string peer;
    std::string client;
    Clock::time_point first_bytes_by;
    bool is_waiting = true;   // for its first bytes
    bool is_closing = false;  // Close has ended it, and the thread has not seen that yet
  };
  struct Client {
    int64_t num_connections = 0;
    std::set<Id> waiting;
    std::set<Id> greeted;  // handed to gRPC
  };

  Acceptor(const Options& options, std::vector<Descriptor> listeners, Descriptor epoll, Descriptor wake_up);

  // All of these run on the thread.
  void Run();
  void StopListening();
  int TimeoutMs() const;
  void AcceptFrom(int listener);
  int RefuseWithSpare(int listener);
  void PauseAccepting(int error);
  void ResumeAccepting();
  bool MakeRoom(const std::string& client, std::string_view peer);
  bool CloseOneOfLargest(int64_t num_own);
  void Add(Descriptor socket, std::string peer, std::string client);
  void OnEvent(Id id, uint32_t events);
  void ReadFirstBytes(Id id, Connection& connection);
  void HandOver(Id id, Connection& connection);
  void CloseSilentConnections();
  void CloseWaiting(Id id, std::string_view reason);
  void Remove(Id id);

  static bool End(Connection& connection);
  void Report(std::string_view peer, std::string_view reason);
  void WakeUp();

  const Options options_;  // with all limits resolved
  const int port_;
  const Descriptor epoll_;
  const Descriptor wake_up_;  // an eventfd
  LogLimiter log_limiter_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_;

  // The thread alone uses these once it runs.
  std::vector<Descriptor> listeners_;
  Descriptor spare_;
  bool is_paused_ = false;
  Clock::time_point resume_at_;
  Id next_id_;
  std::unordered_map<std::string, Client> clients_;
  std::set<Id> waiting_;  // in the order of their arrival, and so of their timeouts

  // The thread alone adds and removes connections.
  mutable absl::Mutex mutex_;
  std::unordered_map<Id, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::multimap<std::string, Id> ids_by_peer_ ABSL_GUARDED_BY(mutex_);

  std::atomic<bool> stop_{false};
  std::atomic<bool> end_{false};
  absl::Notification stopped_;
  std::thread thread_;
};

}  // namespace voxserve
