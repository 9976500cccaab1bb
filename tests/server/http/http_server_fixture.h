#pragma once

// HttpServerFixture is the fixture of tests of HttpServer. It runs a server with small pages on a free port, and sends
// raw bytes to the server.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "server/http/http_server.h"
#include "tests/support/raw_connection.h"

namespace voxserve {

class HttpServerFixture : public testing::Test {
 protected:
  void SetUp() override { Start({}); }

  void Start(HttpServer::Options options) {
    server_.reset();
    options.port = 0;
    absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(
        options, {.metrics = [this] { return metrics_; },
                  .readiness = [this] { return ready_ ? absl::OkStatus() : absl::UnavailableError("loading models"); },
                  .status_page = [] { return "<html>page</html>"; },
                  .authorise = authorise_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Sends the bytes on a new connection and returns all bytes that the server answers. Expects that the server then
  // closes the connection.
  std::string Ask(const std::string& bytes) {
    RawConnection connection(server_->port());
    connection.Send(bytes);
    std::string answer = connection.ReadAll();
    EXPECT_TRUE(connection.is_closed());
    return answer;
  }

  std::string metrics_ = "some_metric 1\n";  // a test sets it before its first request
  std::atomic<bool> ready_{false};
  std::function<absl::Status(std::optional<std::string_view>)> authorise_;  // a test sets it before Start
  std::unique_ptr<HttpServer> server_;
};

}  // namespace voxserve
