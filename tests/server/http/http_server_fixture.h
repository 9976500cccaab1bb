#pragma once

// An HttpServer with a small content, and what it sends for bytes.

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

  // Returns all that the server sends for the bytes.
  std::string Ask(const std::string& bytes) {
    RawConnection connection(server_->port());
    connection.Send(bytes);
    std::string answer = connection.ReadAll();
    EXPECT_TRUE(connection.is_closed());
    return answer;
  }

  std::string metrics_ = "some_metric 1\n";  // to be set before the first request
  std::atomic<bool> ready_{false};
  std::function<absl::Status(std::optional<std::string_view>)> authorise_;  // to be set before Start
  std::unique_ptr<HttpServer> server_;
};

}  // namespace voxserve
