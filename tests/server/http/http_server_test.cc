#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace voxserve {
namespace {

using testing::HasSubstr;

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(
        {.port = 0},
        {.metrics = [] { return "some_metric 1\n"; },
         .readiness = [this] { return ready_ ? absl::OkStatus() : absl::UnavailableError("loading models"); },
         .status_page = [] { return "<html>page</html>"; }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  httplib::Client Connect() const { return httplib::Client("127.0.0.1", server_->port()); }

  // A connection that has said nothing yet; the caller closes it.
  int ConnectRaw() const {
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    EXPECT_EQ(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return descriptor;
  }

  std::atomic<bool> ready_{false};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ServesMetrics) {
  const auto answer = Connect().Get("/metrics");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "some_metric 1\n");
  EXPECT_THAT(answer->get_header_value("Content-Type"), HasSubstr("version=0.0.4"));
}

TEST_F(HttpServerTest, IsAliveBeforeItIsReady) {
  EXPECT_EQ(Connect().Get("/healthz")->status, 200);
  const auto answer = Connect().Get("/readyz");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "loading models\n");
  ready_ = true;
  EXPECT_EQ(Connect().Get("/readyz")->status, 200);
  ready_ = false;
  EXPECT_EQ(Connect().Get("/readyz")->status, 503);
}

TEST_F(HttpServerTest, ServesThePage) {
  const auto answer = Connect().Get("/");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "<html>page</html>");
  EXPECT_THAT(answer->get_header_value("Content-Type"), HasSubstr("text/html"));
  EXPECT_EQ(answer->get_header_value("Cache-Control"), "no-store");
  EXPECT_THAT(answer->get_header_value("Content-Security-Policy"), HasSubstr("default-src 'none'"));
}

TEST_F(HttpServerTest, SaysWhatThereIs) {
  const auto answer = Connect().Get("/nothing");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 404);
  EXPECT_THAT(answer->body, HasSubstr("/metrics"));
  EXPECT_EQ(Connect().Post("/metrics", "x", "text/plain")->status, 404);
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  const auto answer = Connect().Head("/healthz");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_TRUE(answer->body.empty());
}

TEST_F(HttpServerTest, IdleConnectionsHoldNobodyUp) {
  // Each holds a thread until the server hangs up.
  std::vector<int> sockets;
  for (int i = 0; i < 8; ++i) sockets.push_back(ConnectRaw());
  for (int i = 0; i < 20; ++i) {
    const auto answer = Connect().Get("/healthz");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
  }
  for (const int descriptor : sockets) {
    char byte;
    EXPECT_EQ(read(descriptor, &byte, 1), 0) << "closed by the server";
    close(descriptor);
  }
}

TEST_F(HttpServerTest, SlowClientsDoNotHoldTheProbes) {
  // Each holds a thread for as long as it drips.
  std::vector<int> sockets;
  for (int i = 0; i < 16; ++i) {
    sockets.push_back(ConnectRaw());
    EXPECT_GT(send(sockets.back(), "GET /", 5, MSG_NOSIGNAL), 0);
  }
  std::atomic<bool> done{false};
  std::thread drip([&] {
    while (!done) {
      for (const int descriptor : sockets) send(descriptor, "x", 1, MSG_NOSIGNAL);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  for (int i = 0; i < 5; ++i) {
    const auto answer = Connect().Get("/healthz");
    EXPECT_TRUE(answer && answer->status == 200);
  }
  done = true;
  drip.join();
  for (const int descriptor : sockets) close(descriptor);
}

TEST_F(HttpServerTest, ATakenPortIsAnError) {
  const absl::Status status =
      HttpServer::Start({.port = server_->port()}, {.metrics = [] { return ""; },
                                                    .readiness = [] { return absl::OkStatus(); },
                                                    .status_page = [] { return ""; }})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Address already in use"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(server_->port())));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--http_port"));
}

TEST(HttpServerStartTest, AnAddressOfAnotherMachineIsAnError) {
  const absl::Status status = HttpServer::Start({.host = "192.0.2.1", .port = 0}, {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1"));
}

}  // namespace
}  // namespace voxserve
