#pragma once

// HTTP for operators: /metrics (Prometheus), /healthz (the process answers), /readyz (it should get requests), / (a
// status page). A handful of threads of its own, one request a connection, so that an idle client holds nobody up.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace voxserve {

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int port = 8080;  // 0: any free one
    int num_threads = 4;
  };

  // Called on the HTTP threads, several at once, until the server is destroyed.
  struct Content {
    std::function<std::string()> metrics;
    std::function<absl::Status()> readiness;  // not OK: 503 with the message
    std::function<std::string()> status_page;
  };

  // Listens when it returns. UNAVAILABLE where it cannot (port in use, no such address).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Content content);

  // Stops listening; requests under way are answered first.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace voxserve
