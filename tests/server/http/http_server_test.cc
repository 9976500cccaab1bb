#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <string>

#include "tests/server/http/http_server_fixture.h"

namespace voxserve::http_server_test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class HttpServerTest : public HttpServerFixture {
 protected:
  httplib::Client Connect() const { return httplib::Client("127.0.0.1", server_->port()); }
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
}

TEST_F(HttpServerTest, HeadHasNoBodyAndItsLength) {
  const auto answer = Connect().Head("/metrics");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_TRUE(answer->body.empty());
  EXPECT_EQ(answer->get_header_value("Content-Length"), "14");
  EXPECT_THAT(Ask("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, EveryAnswerHasTheSameHeaders) {
  for (const char* path : {"/", "/metrics", "/healthz", "/readyz", "/nothing"}) {
    const auto answer = Connect().Get(path);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->get_header_value("Cache-Control"), "no-store");
    EXPECT_EQ(answer->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(answer->get_header_value("Connection"), "close");
    EXPECT_EQ(answer->has_header("Content-Security-Policy"), std::string(path) == "/");
  }
}

TEST_F(HttpServerTest, RefusesOtherMethods) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "BREW"}) {
    const std::string answer = Ask(std::string(method) + " /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"));
    EXPECT_THAT(answer, HasSubstr("\r\nAllow: GET, HEAD\r\n"));
    EXPECT_THAT(answer, Not(HasSubstr("some_metric")));
  }
}

TEST_F(HttpServerTest, AQueryIsNoPartOfThePath) { EXPECT_EQ(Connect().Get("/healthz?verbose=1")->body, "ok\n"); }

TEST_F(HttpServerTest, SpeaksHttp10) {
  const std::string answer = Ask("GET /healthz HTTP/1.0\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr(" 200 OK\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nok\n"));
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

TEST_F(HttpServerTest, SeveralAuthorizationsAreNone) {
  std::atomic<int> num_asked{0};
  authorise_ = [&](std::optional<std::string_view> authorization) {
    ++num_asked;
    return authorization == "Bearer right" ? absl::OkStatus() : absl::PermissionDeniedError("wrong");
  };
  Start({});
  const auto ask = [this](const std::string& path, const std::string& headers) {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
  };
  EXPECT_THAT(ask("/metrics", "Authorization: Bearer right\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask("/metrics", "Authorization: Bearer other\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_EQ(num_asked, 2);
  for (const char* headers : {"Authorization: Bearer right\r\nAuthorization: Bearer other\r\n",
                              "Authorization: Bearer right\r\nauthorization: Bearer right\r\n",
                              "Authorization: Bearer right\r\nX: y\r\nAUTHORIZATION:\r\n"}) {
    const std::string answer = ask("/metrics", headers);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401")) << headers;
    EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: Bearer"));
    EXPECT_THAT(answer, EndsWith("HTTP 401: the request has several authorization headers: send one\n"));
    EXPECT_THAT(ask("/healthz", headers), StartsWith("HTTP/1.1 200")) << "probes are open to all";
  }
  EXPECT_EQ(num_asked, 2);
}

}  // namespace
}  // namespace voxserve::http_server_test
