#pragma once

// HttpServer serves HTTP to operators: /metrics (Prometheus), /healthz (200 if the process answers), /readyz (200 if
// the process should get requests), / (a status page). It allows only GET and HEAD and one request per connection, and
// uses one thread.
//
// No client can delay a probe, whatever it sends, withholds or leaves unread:
// - Every connection ends at the latest connection_time after its start.
// - Beyond max_connections a new connection replaces the oldest one of the client with the most connections.
// - A connection uses 16 KiB of memory, plus the bytes of its answer. Bodies of requests are not read, and range
//   requests are not supported.
// - With TLS, the time of the handshake counts towards connection_time.
// - The server keeps some file descriptors in reserve. If the process has no other descriptors left, new connections
//   use the reserve. If the reserve is used up too, a new connection replaces an old one, chosen as in the second
//   point. The server never stops listening.

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
    // The certificates of the server, which must outlive it; null: no TLS. If they change, new connections use the new
    // ones, and open connections keep theirs. If asks_clients() is true, /metrics and / answer 403 to a client that
    // shows no valid certificate; probes need none.
    const TlsCertificates* tls = nullptr;
  };

  // The HTTP thread calls these functions until the server is destroyed. While one of them runs, all clients wait.
  struct Content {
    std::function<std::string()> metrics;
    std::function<absl::Status()> readiness;  // not OK: 503 with the message
    std::function<std::string()> status_page;
    // Returns OK if a request may see /metrics and the status page. `authorization` is the request's authorization
    // header; nullopt if there is none. UNAUTHENTICATED gives the client 401, any other error 403. A request with
    // several authorization headers gets 401 without a call. Probes are not checked. If empty, nothing is checked.
    std::function<absl::Status(std::optional<std::string_view> authorization)> authorise = nullptr;
  };

  // Starts a server, which listens when this returns. Returns UNAVAILABLE if it cannot listen (port in use, no such
  // address), and INVALID_ARGUMENT if the HTTP library refuses the certificate.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Content content);

  // Closes the port and all connections; an answer that does not fit into the socket's buffer is cut short. Waits for a
  // function of Content that is running, but for no client.
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
