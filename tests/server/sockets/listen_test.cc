#include "server/sockets/listen.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace voxserve::listen_test {
namespace {

bool CanConnect(const char* address, int port) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

bool CanConnectOverIpv6(int port) {
  sockaddr_in6 to = {};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(static_cast<uint16_t>(port));
  to.sin6_addr = in6addr_loopback;
  const Descriptor socket(::socket(AF_INET6, SOCK_STREAM, 0));
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

TEST(ListenTest, OneAddress) {
  const auto sockets = ListenOn("127.0.0.1", 0);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  ASSERT_EQ(sockets->size(), 1);
  const int port = PortOf(sockets->front());
  EXPECT_GT(port, 0);
  EXPECT_TRUE(CanConnect("127.0.0.1", port));
  EXPECT_FALSE(CanConnect("127.0.0.2", port));
}

TEST(ListenTest, EveryAddressMeansBothFamilies) {
  for (const char* host : {"0.0.0.0", "::", "[::]"}) {
    const auto sockets = ListenOn(host, 0);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    const int port = PortOf(sockets->front());
    EXPECT_TRUE(CanConnect("127.0.0.1", port)) << host;
    EXPECT_TRUE(CanConnect("127.0.0.2", port)) << host;
    if (ListenOn("::1", 0).ok()) {
      EXPECT_TRUE(CanConnectOverIpv6(port)) << host;
    }
  }
}

TEST(ListenTest, AllAddressesOfANameShareThePort) {
  const auto sockets = ListenOn("localhost", 0);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  for (const Descriptor& socket : *sockets) EXPECT_EQ(PortOf(socket), PortOf(sockets->front()));
  EXPECT_TRUE(CanConnect("127.0.0.1", PortOf(sockets->front())));
}

TEST(ListenTest, APortIsTakenOnceAndFreedWithItsSockets) {
  auto sockets = ListenOn("127.0.0.1", 0);
  ASSERT_TRUE(sockets.ok());
  const int port = PortOf(sockets->front());
  const absl::Status status = ListenOn("127.0.0.1", port).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "Address already in use");
  EXPECT_FALSE(ListenOn("0.0.0.0", port).ok());
  sockets->clear();
  EXPECT_TRUE(ListenOn("127.0.0.1", port).ok());
}

TEST(ListenTest, AddressesThatThisMachineDoesNotHave) {
  EXPECT_EQ(ListenOn("192.0.2.1", 0).status().message(), "Cannot assign requested address");
  EXPECT_EQ(ListenOn("no-such-host.invalid", 0).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace voxserve::listen_test
