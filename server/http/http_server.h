#pragma once

// Serves HTTP to operators: /metrics (Prometheus), /healthz (the process answers), /readyz (it should get requests), /
// (a status page). It allows only GET and HEAD and one request per connection, and uses one thread.
//
// No client can delay a probe, whatever it sends, withholds or leaves unread:
// - A connection ends connection_time after its start in any case.
// - Beyond max_connections a new connection replaces the oldest one of the client with the most connections.
// - A connection uses 16 KiB and its answer. Bodies of requests are not read, and range requests are not supported.
// - With TLS a handshake counts as part of its connection's time.
// - Some spare descriptors are kept for the time when the process runs out of them. When these are used too, a new
//   connection replaces the oldest. Listening goes on.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/identity/tls_certificates.h"

namespace voxserve {

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int port = 8080;  // 0: any free port
    int max_connections = 128;
    absl::Duration connection_time = absl::Seconds(5);
    // Null: no TLS. A new version of it serves the next connections; those before end as they began. Where it asks for
    // clients' certificates, /metrics and / need one (403); probes need none. It outlives the server.
    const TlsCertificates* tls = nullptr;
  };

  // The functions are called on the HTTP thread until the server is destroyed. Other clients wait meanwhile.
  struct Content {
    std::function<std::string()> metrics;
    std::function<absl::Status()> readiness;  // not OK: 503 with the message
    std::function<std::string()> status_page;
    // Checks whether the request may see /metrics and the status page; probes are not checked. Gets the authorization
    // header. UNAUTHENTICATED: 401; any other error: 403. Empty: all may. A request with several such headers gets 401
    // without a check.
    std::function<absl::Status(std::optional<std::string_view> authorization)> authorise = nullptr;
  };

  // The server listens when this returns. UNAVAILABLE if it cannot (port in use, no such address), INVALID_ARGUMENT if
  // the library refuses the certificate.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Content content);

  // Closes the port and all connections; an answer that does not fit into the socket's buffer is cut short. Waits for a
  // running function of the content, but for no client.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  class Loop;
  explicit HttpServer(std::unique_ptr<Loop> loop);

  std::unique_ptr<Loop> loop_;
};

}  // namespace voxserve
