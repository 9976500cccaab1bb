#pragma once

// HTTP for operators: /metrics (Prometheus), /healthz (the process answers), /readyz (it should get requests), / (a
// status page). Threads of its own, one request a connection.
//
// A connection holds a thread until it is answered: one that stays silent for a second, one that has begun a request
// for as long as it sends a byte every two seconds. So num_threads clients that dawdle on purpose hold everybody up:
// keep the port among operators, as its default address does.

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
    int num_threads = 32;
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
