#pragma once

// Server is the whole server process without its command line and signals, which main handles. It owns the engine, two
// gRPC servers (one for clients, one for operators), the HTTP server and the metrics; it starts and stops them in the
// right order. Tests start it with a fake engine.
//
// Threads: Start, Drain and the destructor are called by one thread.

#include <grpcpp/grpcpp.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/periodic_thread.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/engine.h"
#include "server/acceptor/acceptor.h"
#include "server/acceptor/call_rate.h"
#include "server/acceptor/flood_guard.h"
#include "server/acceptor/poller_threads.h"
#include "server/acceptor/stray_guard.h"
#include "server/acceptor/upload_guard.h"
#include "server/calls/connection_observer.h"
#include "server/http/http_server.h"
#include "server/http/readiness.h"
#include "server/identity/authoriser.h"
#include "server/identity/client_certificates.h"
#include "server/identity/tls_certificates.h"
#include "server/metrics/metrics.h"
#include "server/options.h"
#include "server/services/services.h"
#include "server/sockets/proxied_peers.h"

namespace voxserve {

class Server final : private ConnectionObserver {
 public:
  // Makes the engine. The engine reports to `observer` and reserves its memory in `memory_budget`; both outlive it.
  using EngineFactory =
      std::function<absl::StatusOr<std::unique_ptr<Engine>>(EngineObserver* observer, MemoryBudget* memory_budget)>;

  // Starts a server, which listens on all ports when this returns. The models load in the background; until then the
  // gRPC health service and /readyz say that the server is not ready. Errors: those of make_engine; INVALID_ARGUMENT if
  // a file of TLS or of tokens cannot be used; UNAVAILABLE if the server cannot listen on a port; INTERNAL if gRPC does
  // not start. version: the program's version, for metrics and clients.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options, const std::string& version,
                                                       const EngineFactory& make_engine);

  // Stops at once: cancels the calls that have not been answered. Blocks until all calls have ended and the engine has
  // stopped.
  ~Server() override;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int grpc_port() const { return acceptor_->port(); }
  int http_port() const { return http_->port(); }
  int admin_port() const { return admin_acceptor_->port(); }
  std::string devices() const { return engine_->devices(); }
  // Asks the engine to scan the model repository once. The files of TLS and of tokens need no call: a thread reads them
  // every second. Returns at once.
  void ReadFilesAgain() { engine_->Poll(); }
  // Returns what the server holds for its clients now.
  Services::Held held() const { return services_->held(); }

  // Shuts the server down without losing requests that it has accepted. In order, it:
  // 1. reports that it is not ready, refuses new requests and streams, and ends searches for plans (UNAVAILABLE, reason
  //    DRAINING);
  // 2. waits until all accepted requests have been answered and all streams have ended;
  // 3. after a fifth of the timeout, if some have not: accepts no more connections, and answers the requests that still
  //    wait in the engine's queues with UNAVAILABLE, reason DRAINING;
  // 4. when all have been answered, closes the gRPC ports and their connections.
  // Returns DEADLINE_EXCEEDED, with the number of unanswered requests in its text, if the timeout ends before step 4;
  // those requests still run then. HTTP goes on until the destructor.
  absl::Status Drain(absl::Duration timeout);

 private:
  class Observer;

  Server(const Options& options, std::string version);
  absl::Status ReadIdentities();
  void StartReloading();
  absl::Status StartEngine(const EngineFactory& make_engine);
  // Takes the ports before models are loaded, so that a port in use is the first and only thing that a start reports.
  // gRPC's connections wait in the system's queue until StartGrpc.
  absl::Status Listen();
  absl::Status StartGrpc();
  Services::Options ServicesOptions();
  // Starts a gRPC server for this service. It has no listener of its own: *connections gets the object through which an
  // Acceptor hands it connections. Returns null if it did not start.
  std::unique_ptr<grpc::Server> BuildGrpc(
      grpc::CallbackGenericService* service,
      std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>* connections) const;
  absl::Status StartHttp();
  void StartGuards();
  std::string SourceOf(const std::string& peer) const override;
  bool IsOpen(const std::string& peer) const override;
  void OnGone(const std::string& peer) override { services_->OnConnectionGone(peer); }
  void OnCall(const std::string& peer) override;
  void OnMessage(const std::string& peer, int64_t bytes, bool is_first) override;
  void OnUsed(const std::string& peer, absl::Time until) override;
  void OnIdle(const std::string& peer) override;
  // Count a call without its request or one that was cancelled at once, and a refused call (CallRate). When a client
  // has caused too many of them, these functions close its connection. Useless calls count for the client's address,
  // which then has to wait before it may connect again; the bytes that the client has sent pay for some. Refused calls
  // count only for the connection, since many callers may share one address; the client may connect again at once. They
  // count less with has_work.
  void OnUselessCall(const std::string& peer) override;
  void OnCancelledCall(const std::string& peer) override;
  void OnRefusedCall(const std::string& peer, bool has_work) override;
  // Closes the connection when its calls have had time to end.
  void OnRefusedCertificate(const std::string& peer) override ABSL_LOCKS_EXCLUDED(refused_mutex_);
  void CloseRefused() ABSL_LOCKS_EXCLUDED(refused_mutex_);
  // Reads the files of TLS and of tokens again.
  void ReadIdentitiesAgain();
  // Ends the calls and connections whose identity is refused by now.
  void LookAtIdentities();
  void SpendTokens(const std::string& peer, double tokens);
  // Closes the connection, since its unfinished messages take too much memory. After the first time the client may
  // connect again at once; after a second time, soon after the first, it has to wait.
  void OnLargeUpload(const std::string& peer);
  // Closes the connection and takes all tokens of the client's address, which has to wait before it may connect again.
  void CloseFlooding(const std::string& peer);
  // Lets stray_guard_ look at the traffic of all connections, and returns it for upload_guard_, which calls this.
  std::map<std::string, SocketTraffic> LookAtTraffic();
  // Closes the connection, since it brings bytes of no use. Its client may connect again after 50 seconds, or at once
  // if `bytes` is so small that a mistake of its can be the reason.
  void OnStrayBytes(const std::string& peer, int64_t bytes);
  // Closes the peer's connection, to either port. Returns false if there was none. reason: one of connection_reason.
  bool Close(const std::string& peer, std::string_view reason);
  void StopAccepting();
  // Returns the acceptors of both ports; null before they listen.
  std::array<Acceptor*, 2> Acceptors() const { return {acceptor_.get(), admin_acceptor_.get()}; }
  // Tells readiness_ when the models have been loaded. Returns the time until the next call.
  absl::Duration WatchLoading();
  std::string RenderStatusPage() const;

  const Options options_;
  const std::string version_;
  const absl::Time started_;

  // Each member may use the members above it.
  std::unique_ptr<TlsCertificates> tls_;                     // null: no TLS
  std::unique_ptr<ClientCertificates> client_certificates_;  // null: clients need no certificate
  std::unique_ptr<Authoriser> authoriser_;                   // null: no tokens
  Readiness readiness_;
  MemoryBudget memory_budget_;  // for the host memory of the whole process
  std::unique_ptr<Observer> metrics_;
  std::unique_ptr<Engine> engine_;
  CallRate useless_calls_{{}};
  CallRate penalties_{{}};  // tokens that no uploaded bytes give back
  CallRate long_penalties_{{.per_second = 10}};
  absl::Mutex earning_mutex_;
  absl::Mutex refused_mutex_;
  std::map<std::string, absl::Time> refused_ ABSL_GUARDED_BY(refused_mutex_);  // peers, and when to close them
  absl::Time next_look_ = absl::InfinitePast();                                // only LookAtIdentities uses it
  ProxiedPeers proxied_peers_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<grpc::Server> admin_grpc_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Acceptor> admin_acceptor_;
  std::unique_ptr<FloodGuard> flood_guard_;
  PollerThreads poller_threads_;
  std::unique_ptr<StrayGuard> stray_guard_;
  std::unique_ptr<UploadGuard> upload_guard_;  // its thread uses stray_guard_
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<PeriodicThread> load_watch_;  // waits until the models have been loaded, and then tells readiness_
  std::unique_ptr<PeriodicThread> identity_watch_;  // looks at the identities of open calls; null: there are none
  std::unique_ptr<PeriodicThread> reload_;          // reads the files of TLS and of tokens again; null: there are none
};

}  // namespace voxserve
