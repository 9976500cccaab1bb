#pragma once

// The acceptor takes connections from the network and hands them to gRPC, within limits. gRPC 1.51.1's own listener has
// no limits: it stops for good when descriptors run out (CVE-2023-4785), and it keeps as many silent connections as
// there are descriptors.
//
// - First bytes: gRPC gets a connection when the client has sent the first bytes of HTTP/2, or with TLS the first bytes
//   of its ClientHello. Until then the connection costs one descriptor and no gRPC memory. The acceptor closes a
//   connection that sends other first bytes, or none in time.
// - Proxies: a trusted proxy says with the PROXY protocol for which address it opens a connection, and that address is
//   the connection's client. Until this header has come, the connection counts for the proxy's address, to which no
//   limit per client applies. A few such connections may exceed the limit for all.
// - Limits: there is a limit for all connections, and one for the connections of one client (an IPv4 address, or a /64
//   of IPv6; see ClientOf in server/sockets/peer.h). At the limit per client, a new connection replaces the client's
//   oldest connection that still waits for its first bytes. At the limit for all, it replaces the idle connection that
//   SharedPlaces chooses, or else the oldest that has waited for its first bytes for a second. A connection is idle
//   while no request runs on it and none of its streams has had points for a while. If no connection gives way, the
//   acceptor closes the new one.
// - Descriptors: the acceptor keeps one spare descriptor. When the process runs out of descriptors, the acceptor closes
//   the spare to accept and close the next connection, then opens it again. Listening goes on.
// - Memory: if there is none for a connection's event, the connection ends; if there is none for a new connection,
//   those that come wait for a moment. The tables stay right, so that no place is lost.
//
// Order of calls: Listen; grpc::ServerBuilder::experimental().AddExternalConnectionAcceptor(FROM_FD, credentials);
// BuildAndStart; Start; ...; Stop; grpc::Server::Shutdown; destroy in any order, after EndThread if the hooks' owner
// goes before the acceptor.
//
// Threads: the acceptor has one thread, which accepts and watches connections and never waits for a client. Only the
// owner calls Start, Stop, EndThread and the destructor; all other methods are thread-safe. The hooks of Options are
// called without a lock on the acceptor's thread; Close calls on_closed on its caller's thread.
//
// The acceptor relies on these facts about gRPC 1.51.1 (from its sources; acceptor_grpc_test checks the observable
// ones):
// - gRPC calls shutdown(SHUT_RDWR) when it drops a connection; the acceptor's duplicate of the descriptor then sees
//   EPOLLHUP. gRPC closes its own descriptor when the connection's last call has ended, which may be later.
// - The duplicate keeps the socket in gRPC's epoll set a little longer than gRPC expects. Events in that time are
//   harmless: gRPC frees no grpc_fd (its object for a descriptor) before it shuts down, and it tolerates events without
//   a cause.
// - Before the gRPC server has started, and after its shutdown has begun, HandleNewConnection neither serves nor closes
//   the descriptor that it gets. So Start comes after BuildAndStart, and Stop before Shutdown.
// - HandleNewConnection does not use the listening socket that it is told. (1.83 refuses a connection without one.)
// - gRPC's own listener sets TCP_NODELAY, and TCP_USER_TIMEOUT with keepalive; accepted sockets inherit both options.
//   gRPC sets neither on external descriptors, so the acceptor sets both on its listening sockets.
// - A connection that sends the first bytes but no SETTINGS frame is closed after GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS
//   (120 s by default).
// - grpc::ServerContext::peer() is the result of PeerOf (server/sockets/peer.h).
// - gRPC ends a connection whose client has shut down its sending side; the acceptor does not.

#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
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
#include "server/acceptor/connection_places.h"
#include "server/sockets/descriptor.h"
#include "server/sockets/network.h"
#include "server/sockets/proxied_peers.h"
#include "server/sockets/shared_places.h"
#include "server/sockets/socket_traffic.h"

namespace voxserve {

// The reasons for which the acceptor closes a connection: a small set, for metrics and logs.
namespace connection_reason {
inline constexpr std::string_view kConnectionLimit = "CONNECTION_LIMIT";  // too many in total
inline constexpr std::string_view kClientLimit = "CLIENT_LIMIT";          // too many from one client
inline constexpr std::string_view kNoDescriptors = "NO_DESCRIPTORS";
inline constexpr std::string_view kNoFirstBytes = "NO_FIRST_BYTES";       // none arrived in time
inline constexpr std::string_view kNotHttp2 = "NOT_HTTP2";                // the first bytes are not those of HTTP/2
inline constexpr std::string_view kNotTls = "NOT_TLS";                    // the first bytes are not those of TLS
inline constexpr std::string_view kProxyHeader = "PROXY_HEADER";          // a trusted proxy sent a broken header
inline constexpr std::string_view kUnfinishedCalls = "UNFINISHED_CALLS";  // refused by is_welcome, or passed to Close
inline constexpr std::string_view kStrayBytes = "STRAY_BYTES";            // passed to Close
inline constexpr std::string_view kCertificate = "CERTIFICATE_REFUSED";   // passed to Close: the client's has ended
}  // namespace connection_reason

// How far a connection came that ended without a call, and that the acceptor did not close: a small set, for metrics.
namespace unused_connection {
inline constexpr std::string_view kNoFirstBytes = "NO_FIRST_BYTES";  // or only a part of them
// The TLS handshake ended early or refused a certificate, the bytes were no HTTP/2, the first header block had no end,
// or the client did not call. gRPC tells nobody which of these it was.
inline constexpr std::string_view kNoCall = "NO_CALL";
}  // namespace unused_connection

class Acceptor {
 public:
  struct Options {
    std::string what = "gRPC";       // what the port is for, as the text of ListenError says
    std::string port_flag = "port";  // the flag of the port, for ListenError
    std::string host_flag = "host";  // the flag of the host, for ListenError
    std::string host = "0.0.0.0";    // "0.0.0.0" and "::" mean every address, see ListenOn
    int port = 0;                    // 0: any free port
    // The most connections at a time. 0: as many as DescriptorLimit() allows with two descriptors each, less a reserve
    // for files and HTTP, but at most 10,000.
    int64_t max_connections = 0;
    // The most connections of one client at a time. 0: a quarter of max_connections, since many vehicles may share an
    // address.
    int64_t max_client_connections = 0;
    absl::Duration first_bytes_timeout = absl::Seconds(10);
    // Proxies whose connections may begin with a header of the PROXY protocol (server/sockets/proxy_header.h).
    std::vector<Network> trusted_proxies;
    ProxiedPeers* proxied_peers = nullptr;  // receives what proxies say; not null if there are any
    bool has_tls = false;                   // clients of this port begin with a TLS handshake
    // TCP_USER_TIMEOUT: a connection ends if sent bytes are not acknowledged for this time. 0: the system's value
    // (minutes).
    absl::Duration unacknowledged_timeout = absl::Seconds(20);
    // Returns whether the client may connect now; if false, the acceptor refuses the connection. Called for every new
    // connection when its client is known: at once, or for a trusted proxy's when its header has come. Empty: all
    // clients may connect.
    std::function<bool(const std::string& client)> is_welcome;
    // Returns since when the peer's open requests and streams have been idle (SharedPlaces::IdleSince), InfinitePast if
    // it has none. Empty: no peer has any.
    std::function<absl::Time(const std::string& peer)> idle_since;
    SharedPlaces::Options places;  // how long a connection is idle before it gives way
    // Called when the acceptor closes a connection, at its arrival or later. reason: one of connection_reason, or the
    // one that was given to Close.
    std::function<void(std::string_view reason)> on_closed;
    // Called when a connection has ended that had no call (OnCall), unless on_closed was called for it or the acceptor
    // was stopped. reason: one of unused_connection.
    std::function<void(std::string_view reason)> on_unused;
    // Called when a connection that gRPC had has ended.
    std::function<void(const std::string& peer)> on_gone;
    // Called with the number of open connections whenever it changes.
    std::function<void(int64_t open)> on_open_connections;
  };

  // Binds and listens. Connections wait in the system's queue until Start. Returns UNAVAILABLE with the text of
  // ListenError (server/sockets/listen_error.h) if the system refuses.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const Options& options);

  // Calls EndThread, then closes the acceptor's duplicates of descriptors. gRPC keeps its connections.
  ~Acceptor();

  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }
  int64_t max_connections() const { return options_.max_connections; }
  int64_t max_client_connections() const { return options_.max_client_connections; }

  // Begins to accept, for a grpc::Server that has started. Called once.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc);

  // Closes the listening sockets and the connections that gRPC does not have yet. The connections of gRPC stay open,
  // and Close can still end them. gRPC gets no connection after this returns.
  void Stop();

  // Calls Stop, and ends the acceptor's thread. No hook is called on that thread after this returns, so their owner may
  // go. The other methods may still be called.
  void EndThread();

  // Ends every connection that gRPC has, after the bytes that were already written to it are sent. A server calls this
  // when it has answered everything, before it shuts gRPC down. A call that arrives later fails with UNAVAILABLE at its
  // client, which then tries another server. Without EndAll, gRPC's shutdown would end such a call with CANCELLED,
  // which clients do not retry.
  void EndAll();

  // Ends the peer's connection at once: its calls are cancelled, and data that the client has not read is dropped.
  // peer: from grpc::ServerContext::peer(). Returns false if the peer has no open connection, or an earlier Close has
  // ended it.
  bool Close(const std::string& peer, std::string_view reason);
  // Counts and logs a connection of this peer that is closed for this reason, as Close does. For one that its client
  // has closed before Close could.
  void Report(std::string_view peer, std::string_view reason);

  // Tells that the peer's connection has carried a call.
  void OnCall(const std::string& peer);
  // Returns true if the peer has a connection. When it has ended, on_gone is called after this returns false.
  bool IsOpen(const std::string& peer) const;
  // Tells that the peer's connection has been of use: it does not count as idle before `until` (by SteadyNow).
  void SetInUse(const std::string& peer, absl::Time until);

  // Returns, by peer, the traffic of each connection of gRPC since the connection began, and the last traffic of those
  // that have ended since the last call.
  std::map<std::string, SocketTraffic> TakeTraffic();
  // Returns the bytes that have been received over the peer's connection since the last call for it, or since the
  // connection began; 0 if there is no such connection.
  int64_t TakeReceivedBytes(const std::string& peer);

  // Returns the number of connections that neither gRPC nor the client has ended, including those that wait for first
  // bytes.
  int64_t open_connections() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Id = ConnectionPlaces::Id;

  struct Connection {
    Descriptor socket;  // the descriptor that the acceptor watches; gRPC has a duplicate
    std::string peer;
    std::string client;
    std::list<std::string> gone;  // the peer alone; moves to untold_ at the end, which allocates nothing
    Clock::time_point first_bytes_by;
    absl::Time idle_since;    // by SteadyNow; by what the acceptor itself knows
    int64_t taken_bytes = 0;  // the received bytes that TakeReceivedBytes has returned
    bool has_called = false;  // OnCall was called for it
    bool awaits_proxy_header = false;
    bool is_waiting = true;   // it waits for its first bytes
    bool is_closing = false;  // Close has ended it, but the thread has not seen that yet
  };

  Acceptor(const Options& options, std::vector<Descriptor> listeners, Descriptor epoll, Descriptor wake_up);

  // The acceptor's thread runs all of these.
  void Run();
  void StopListening();
  int TimeoutMs() const;
  void AcceptFrom(int listener);
  int RefuseWithSpare(int listener);
  void PauseAccepting(int error);
  void ResumeAccepting();
  bool MakeRoomForClient(const std::string& client, std::string_view peer);
  bool MakeRoomInAll(const std::string& client, std::string_view peer, int64_t limit);
  absl::Time IdleSince(Id id) const;
  void Add(Descriptor socket, std::string peer, std::string client, bool is_of_proxy);
  void DropWithoutMemory(Id id);
  void OnEvent(Id id, uint32_t events);
  bool ReadProxyHeader(Id id, Connection& connection);
  bool CountForSource(Id id, Connection& connection, const std::string& source);
  void ReadFirstBytes(Id id, Connection& connection);
  void HandOver(Id id, Connection& connection);
  void CloseSilentConnections();
  void CloseWaiting(Id id, std::string_view reason);
  void RemoveEnded(Id id, const Connection& connection);
  std::string Remove(Id id);
  void TellGone();

  static bool End(Connection& connection);
  void WakeUp();

  const Options options_;  // with all limits set
  const int port_;
  const Descriptor epoll_;
  const Descriptor wake_up_;  // an eventfd
  LogLimiter log_limiter_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_;

  // Once the acceptor's thread runs, only that thread uses these members.
  std::vector<Descriptor> listeners_;
  Descriptor spare_;
  bool is_paused_ = false;
  Clock::time_point resume_at_;
  Id next_id_;
  ConnectionPlaces places_;        // of all connections but one whose client is about to be known
  std::list<std::string> untold_;  // peers whose end on_gone has not been told yet

  // Only the thread adds and removes connections.
  mutable absl::Mutex mutex_;
  std::unordered_map<Id, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::multimap<std::string, Id> ids_by_peer_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, SocketTraffic> ended_ ABSL_GUARDED_BY(mutex_);  // by peer, since the last TakeTraffic

  std::atomic<bool> stop_{false};
  std::atomic<bool> end_{false};
  absl::Notification stopped_;
  std::thread thread_;
};

}  // namespace voxserve
