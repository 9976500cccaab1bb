#pragma once

// The running server: engine, gRPC server, HTTP server and metrics, started in the right order and stopped in the
// reverse one. main puts flags before it and signals around it; tests put a fake engine into it.

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/engine.h"
#include "server/acceptor/acceptor.h"
#include "server/acceptor/call_rate.h"
#include "server/acceptor/flood_guard.h"
#include "server/acceptor/upload_guard.h"
#include "server/http/http_server.h"
#include "server/http/readiness.h"
#include "server/identity/authoriser.h"
#include "server/identity/reload_thread.h"
#include "server/identity/tls_certificates.h"
#include "server/metrics/metrics.h"
#include "server/options.h"
#include "server/services/services.h"
#include "server/sockets/proxied_peers.h"

namespace voxserve {

class Server {
 public:
  // Makes the engine, which reports to the observer and reserves its memory in the budget (both outlive the engine).
  using EngineFactory =
      std::function<absl::StatusOr<std::unique_ptr<Engine>>(EngineObserver* observer, MemoryBudget* memory_budget)>;

  // Listens when it returns; models load in the background, and both healths say so. The factory's error,
  // INVALID_ARGUMENT for a file of TLS or of tokens that cannot be used, or UNAVAILABLE where a port cannot be listened
  // on.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options, const std::string& version,
                                                       const EngineFactory& make_engine);

  // Stops at once: calls that are not answered yet are cancelled. Blocks until the engine has let go of them.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int grpc_port() const { return acceptor_->port(); }
  int http_port() const { return http_->port(); }
  int admin_port() const { return admin_acceptor_->port(); }
  std::string devices() const { return engine_->devices(); }
  // Returns what the server holds for its clients now.
  Services::Held held() const { return services_->held(); }

  // Says not ready, refuses new requests (UNAVAILABLE, DRAINING), ends searches of plans likewise, waits until every
  // accepted one has been answered, then closes the gRPC port. After a fifth of the timeout the requests that still
  // wait in queues are answered UNAVAILABLE, reason DRAINING, too. DEADLINE_EXCEEDED with the number of unanswered
  // requests where the timeout ends first; they are still running then. HTTP goes on until the destructor.
  absl::Status Drain(absl::Duration timeout);

 private:
  class Observer;

  Server(const Options& options, std::string version);
  absl::Status ReadIdentities();
  void StartReloading();
  absl::Status StartEngine(const EngineFactory& make_engine);
  absl::Status StartGrpc();
  Services::Options ServicesOptions();
  // A gRPC server on this service that takes connections from an acceptor; null: it did not start.
  std::unique_ptr<grpc::Server> BuildGrpc(
      grpc::CallbackGenericService* service,
      std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>* connections) const;
  absl::Status StartHttp();
  void StartGuards();
  // Close the connection of a client that opens calls without use, cancels them at once, or goes on when it is refused,
  // once it has done so too often. Refusals count for the connection alone, which may be followed by another at once:
  // many callers may stand behind one address.
  void OnUselessCall(const std::string& peer);
  void OnCancelledCall(const std::string& peer);
  void OnRefusedCall(const std::string& peer);
  // Closes the connection; the client may come again at once, but not a second time.
  void OnLargeUpload(const std::string& peer);
  void CloseFlooding(const std::string& peer);
  // Ends the peer's connections, on whichever port.
  bool Close(const std::string& peer);
  void StopAccepting();
  void WatchLoading();
  std::string RenderStatusPage() const;

  const Options options_;
  const std::string version_;
  const absl::Time started_;

  // In the order in which they need each other.
  std::unique_ptr<TlsCertificates> tls_;    // null: no TLS
  std::unique_ptr<Authoriser> authoriser_;  // null: no tokens
  Readiness readiness_;
  MemoryBudget memory_budget_;  // of the whole process
  std::unique_ptr<Observer> metrics_;
  std::unique_ptr<Engine> engine_;
  CallRate useless_calls_{{}};
  ProxiedPeers proxied_peers_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<grpc::Server> admin_grpc_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Acceptor> admin_acceptor_;
  std::unique_ptr<FloodGuard> flood_guard_;
  std::unique_ptr<UploadGuard> upload_guard_;
  std::unique_ptr<HttpServer> http_;
  SteadyNotification stopping_;
  std::thread load_watch_;                // sees the loading end
  std::unique_ptr<ReloadThread> reload_;  // reads files again
};

}  // namespace voxserve
