#include "server/sockets/listen_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace voxserve::listen_error_test {
namespace {

using testing::HasSubstr;

TEST(ListenErrorTest, SaysWhyAndWhatToDo) {
  const absl::Status status = ListenError("gRPC", "192.0.2.1", 8500, "port");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("cannot listen for gRPC on 192.0.2.1:8500: Cannot assign requested address"));
  EXPECT_THAT(message, HasSubstr("--port"));
}

TEST(ListenErrorTest, NamesThatDoNotResolve) {
  const std::string message(ListenError("HTTP", "no-such-host.invalid", 80, "http_port").message());
  EXPECT_THAT(message, HasSubstr("no-such-host.invalid:80: "));
}

TEST(ListenErrorTest, BracketsOfIpv6) {
  EXPECT_EQ(WithBrackets("::1"), "[::1]");
  EXPECT_EQ(WithBrackets("[::1]"), "[::1]");
  EXPECT_EQ(WithBrackets("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(WithoutBrackets("[::1]"), "::1");
  EXPECT_EQ(WithoutBrackets("::1"), "::1");
  EXPECT_EQ(WithoutBrackets("localhost"), "localhost");
}

}  // namespace
}  // namespace voxserve::listen_error_test
