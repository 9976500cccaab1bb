#pragma once

// HTTP for operators: /metrics (Prometheus), /healthz (the process answers), /readyz (it should get requests), / (a
// status page). GET and HEAD alone, one request a connection, one thread for all of them.
//
// Nothing that clients send, withhold or leave unread keeps a probe waiting:
// - A connection ends connection_time after its start, answered or not, whatever moves on it.
// - Beyond max_connections a new one takes the place of the oldest, among those of the client that has the most.
// - A connection holds 16 KiB and its answer. Bodies of requests are not read, and ranges are not served.
// - A few descriptors are kept for the time when the process has none left. Where they are used, too, a new connection
//   takes the place of the oldest. Listening goes on.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace voxserve {

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int port = 8080;  // 0: any free one
    int max_connections = 128;
    absl::Duration connection_time = absl::Seconds(5);
  };

  // Called on the HTTP thread, until the server is destroyed. The next client waits meanwhile.
  struct Content {
    std::function<std::string()> metrics;
    std::function<absl::Status()> readiness;  // not OK: 503 with the message
    std::function<std::string()> status_page;
  };

  // Listens when it returns. UNAVAILABLE where it cannot (port in use, no such address).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Content content);

  // Closes the port and all connections: an answer that does not fit into the socket's buffer is cut short. Waits for a
  // function of the content that runs, and for no client.
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
