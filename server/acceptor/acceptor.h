#pragma once

// The acceptor takes connections from the network and hands them to gRPC, within limits. gRPC 1.51.1's own listener has
// no limits: it stops for good when descriptors run out (CVE-2023-4785), and it keeps as many silent connections as
// there are descriptors.
//
// - First bytes: gRPC gets a connection when the client has sent the first bytes of HTTP/2, or with TLS of its hello.
//   Until then it costs one descriptor and no gRPC memory. A connection with other first bytes, or with none in time,
//   is closed.
// - Proxies: a trusted proxy says with the PROXY protocol for which address it opens a connection, and that address is
//   the connection's client. Until then the connection counts for the proxy, without a limit of its own.
// - Limits: there are limits for all connections, and for those of one client (an address). At a limit, a new
//   connection replaces one that still waits for its first bytes. At the limit for all, it can also replace a
//   connection of the client with the most connections, if its own client stays below that number: the oldest
//   connection without work (requests and streams), or, for a client without any connection, the oldest one. Otherwise
//   the new connection is closed.
// - Descriptors: when they run out, a spare descriptor is used to accept and close a new connection. Listening goes on.
//
// Use: Listen; grpc::ServerBuilder::experimental().AddExternalConnectionAcceptor(FROM_FD, credentials); BuildAndStart;
// Start; ...; Stop; grpc::Server::Shutdown; destroy in any order.
//
// Threads: one thread of its own accepts and watches; it never waits for a client. Only the owner calls Start, Stop and
// the destructor; everything else is thread-safe. Hooks are called without a lock, on that thread or on Close's caller.
//
// It relies on these facts about gRPC 1.51.1 (from its sources; acceptor_grpc_test checks the observable ones):
// - gRPC calls shutdown(SHUT_RDWR) when it drops a connection; the acceptor's duplicate of the descriptor then sees
//   EPOLLHUP. gRPC closes its own descriptor when the connection's last call has ended, which may be later.
// - The duplicate keeps the socket in gRPC's epoll set a little longer than gRPC expects. Events in that time are
//   harmless: gRPC never frees a grpc_fd while it runs, and it tolerates events without a cause.
// - HandleNewConnection neither closes nor serves a descriptor before the server has started or after its shutdown has
//   begun. So Start comes after BuildAndStart, and Stop before Shutdown.
// - gRPC's own listener sets TCP_NODELAY, and TCP_USER_TIMEOUT with keepalive; accepted sockets inherit both. gRPC sets
//   neither on external descriptors, so the acceptor's listener sets both.
// - A connection that sends the first bytes but no SETTINGS frame is closed after GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS
//   (120 s by default).
// - grpc::ServerContext::peer() is the result of PeerOf (server/sockets/peer.h).
// - gRPC ends a connection whose client has shut down its sending side; the acceptor does not.

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
#include "server/sockets/network.h"
#include "server/sockets/proxied_peers.h"

namespace voxserve {

// The reasons for which the acceptor closes a connection: a small set, for metrics and logs.
namespace connection_reason {
inline constexpr std::string_view kConnectionLimit = "CONNECTION_LIMIT";  // too many in total
inline constexpr std::string_view kClientLimit = "CLIENT_LIMIT";          // too many from one client
inline constexpr std::string_view kNoDescriptors = "NO_DESCRIPTORS";
inline constexpr std::string_view kNoFirstBytes = "NO_FIRST_BYTES";       // none arrived in time
inline constexpr std::string_view kNotHttp2 = "NOT_HTTP2";                // the first bytes are not those of HTTP/2
inline constexpr std::string_view kNotTls = "NOT_TLS";                    // they are not those of TLS
inline constexpr std::string_view kProxyHeader = "PROXY_HEADER";          // a trusted proxy sent a broken one
inline constexpr std::string_view kUnfinishedCalls = "UNFINISHED_CALLS";  // for Close: CallRate and both guards
}  // namespace connection_reason

class Acceptor {
 public:
  struct Options {
    std::string what = "gRPC";       // for errors
    std::string port_flag = "port";  // likewise
    std::string host_flag = "host";
    std::string host = "0.0.0.0";  // "0.0.0.0" and "::" mean every address, see ListenOn
    int port = 0;                  // 0: any
    // The most connections at a time. 0: as many as fit DescriptorLimit with two descriptors each and a reserve for
    // files and HTTP, but at most 10,000.
    int64_t max_connections = 0;
    // The same for one client. 0: a quarter of max_connections, since many vehicles may share an address.
    int64_t max_client_connections = 0;
    absl::Duration first_bytes_timeout = absl::Seconds(10);
    // Their connections may begin with a header of the PROXY protocol (server/sockets/proxy_header.h).
    std::vector<Network> trusted_proxies;
    ProxiedPeers* proxied_peers = nullptr;  // is told what they say; not null if there are trusted proxies
    bool has_tls = false;                   // gRPC has credentials of TLS, so clients begin with its handshake
    // TCP_USER_TIMEOUT: a connection ends if sent bytes are not acknowledged for this time. 0: the system's value
    // (minutes).
    absl::Duration unacknowledged_timeout = absl::Seconds(20);
    // Returns whether the client may connect now; otherwise the connection is refused. Called at every arrival. Empty:
    // all may.
    std::function<bool(const std::string& client)> is_welcome;
    // Returns whether the peer has work on this server, so that its connection is replaced last. Empty: no peer has.
    std::function<bool(const std::string& peer)> has_work;
    // Called when the acceptor closes a connection, at its arrival or later. reason: one of connection_reason, or
    // Close's.
    std::function<void(std::string_view reason)> on_closed;
    // Called with the number of open connections whenever it changes.
    std::function<void(int64_t open)> on_open_connections;
  };

  // Binds and listens. Connections wait in the system's queue until Start. UNAVAILABLE with the text of ListenError.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const Options& options);

  // Stops, then closes the acceptor's duplicates. gRPC keeps its connections.
  ~Acceptor();

  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }
  int64_t max_connections() const { return options_.max_connections; }
  int64_t max_client_connections() const { return options_.max_client_connections; }

  // Begins to accept, for a grpc::Server that has started. Called once.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc);

  // Closes the listening sockets and the connections that gRPC does not have yet. The others stay open and can still be
  // closed. gRPC gets no connection after this returns.
  void Stop();

  // Ends every connection of gRPC when what was written to it has been sent. For a server that has answered everything:
  // calls that come now fail with UNAVAILABLE at their clients, which try again elsewhere. From gRPC, which would
  // cancel them while it shuts down, they got CANCELLED.
  void EndAll();

  // Ends the peer's connection at once: its calls are cancelled, and data that the client has not read is dropped.
  // peer: from grpc::ServerContext::peer(). Returns false if it has no open connection, or an earlier Close has ended
  // it.
  bool Close(const std::string& peer, std::string_view reason);

  // Returns, by peer, the bytes received over each connection of gRPC since the connection began.
  std::map<std::string, int64_t> ReceivedBytesByPeer() const;

  // Returns the number of connections that neither gRPC nor the client has ended, including those that wait for first
  // bytes.
  int64_t open_connections() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Id = uint64_t;  // id of a connection; grows with every arrival, never used twice

  struct Connection {
    Descriptor socket;  // the descriptor that the acceptor watches; gRPC has a duplicate
    std::string peer;
    std::string client;
    Clock::time_point first_bytes_by;
    bool awaits_proxy_header = false;
    bool is_waiting = true;   // it waits for its first bytes
    bool is_closing = false;  // Close has ended it, but the thread has not seen that yet
  };
  struct Client {
    int64_t num_connections = 0;
    std::set<Id> waiting;
    std::set<Id> greeted;  // connections that gRPC has
  };

  Acceptor(const Options& options, std::vector<Descriptor> listeners, Descriptor epoll, Descriptor wake_up);

  // The thread runs all of these.
  void Run();
  void StopListening();
  int TimeoutMs() const;
  void AcceptFrom(int listener);
  int RefuseWithSpare(int listener);
  void PauseAccepting(int error);
  void ResumeAccepting();
  bool MakeRoomForClient(const std::string& client, std::string_view peer);
  bool MakeRoomInAll(const std::string& client, std::string_view peer);
  bool CloseOneOfLargest(int64_t num_own);
  void Add(Descriptor socket, std::string peer, std::string client, bool is_of_proxy);
  void OnEvent(Id id, uint32_t events);
  bool ReadProxyHeader(Id id, Connection& connection);
  bool CountForSource(Id id, Connection& connection, const std::string& source);
  void ReadFirstBytes(Id id, Connection& connection);
  void HandOver(Id id, Connection& connection);
  void CloseSilentConnections();
  void CloseWaiting(Id id, std::string_view reason);
  void Remove(Id id);

  static bool End(Connection& connection);
  void Report(std::string_view peer, std::string_view reason);
  void WakeUp();

  const Options options_;  // with all limits set
  const int port_;
  const Descriptor epoll_;
  const Descriptor wake_up_;  // an eventfd
  LogLimiter log_limiter_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_;

  // Once the thread runs, only the thread uses these.
  std::vector<Descriptor> listeners_;
  Descriptor spare_;
  bool is_paused_ = false;
  Clock::time_point resume_at_;
  Id next_id_;
  std::unordered_map<std::string, Client> clients_;
  std::set<Id> waiting_;  // in the order of their arrival, and so of their timeouts

  // Only the thread adds and removes connections.
  mutable absl::Mutex mutex_;
  std::unordered_map<Id, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::multimap<std::string, Id> ids_by_peer_ ABSL_GUARDED_BY(mutex_);

  std::atomic<bool> stop_{false};
  std::atomic<bool> end_{false};
  absl::Notification stopped_;
  std::thread thread_;
};

}  // namespace voxserve
