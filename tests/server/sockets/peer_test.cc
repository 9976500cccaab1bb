#include "server/sockets/peer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/sockets/socket_address.h"

namespace voxserve::peer_test {
namespace {

// acceptor_grpc_test.cc compares the results of PeerOf with the peers that gRPC reports.
TEST(PeerTest, IsWrittenAsGrpcWritesIt) {
  EXPECT_EQ(PeerOf(Ipv4("127.0.0.1", 41234)), "ipv4:127.0.0.1:41234");
  EXPECT_EQ(PeerOf(Ipv6("::1", 41234)), "ipv6:%5B::1%5D:41234");
  EXPECT_EQ(PeerOf(Ipv6("2001:db8::7", 65535)), "ipv6:%5B2001:db8::7%5D:65535");
  EXPECT_EQ(PeerOf(Ipv6("fe80::1", 80, 2)), "ipv6:%5Bfe80::1%252%5D:80");
  EXPECT_EQ(PeerOf(Ipv6("::ffff:10.1.2.3", 80)), "ipv4:10.1.2.3:80");
  EXPECT_EQ(PeerOf(sockaddr_storage{}), "");
}

TEST(PeerTest, ClientIsTheAddressAlone) {
  EXPECT_EQ(ClientOf("ipv4:127.0.0.1:41234"), "127.0.0.1");
  EXPECT_EQ(ClientOf("ipv6:%5B::1%5D:41234"), "::1");
  EXPECT_EQ(ClientOf("ipv6:[::1]:41234"), "::1");
  EXPECT_EQ(ClientOf("ipv6:%5Bfe80::1%252%5D:80"), "fe80::1%2");
}

TEST(PeerTest, TheAddressesOfAnIpv6HostAreOneClient) {
  EXPECT_EQ(ClientOf("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:80"), "2001:db8:1:2::/64");
  EXPECT_EQ(ClientOf("ipv6:%5B2001:db8:1:2::9%5D:81"), "2001:db8:1:2::/64");
  EXPECT_EQ(ClientOf("ipv6:%5B2001:db8:1:3::9%5D:81"), "2001:db8:1:3::/64");
  EXPECT_EQ(ClientOf("ipv6:%5Bno address%5D:81"), "no address");
}

TEST(PeerTest, OtherStringsAreTheirOwnClients) {
  for (const char* peer : {"", "unix:/run/voxserve.sock", "ipv4:", "ipv4:127.0.0.1", "ipv6:", "ipv6:::1", "ipv6:%5B::1",
                           "ipv6:[::1]", "nonsense"}) {
    EXPECT_EQ(ClientOf(peer), peer);
  }
}

TEST(PeerTest, WiderNetworksOfAClientAreNamedTheWidestFirst) {
  using Networks = std::vector<std::string>;
  EXPECT_EQ(NetworksOf("203.0.113.7"), (Networks{"203.0.0.0/16", "203.0.113.0/24"}));
  EXPECT_EQ(NetworksOf("2001:db8:12:3456::/64"),
            (Networks{"2001:db8:12::/48", "2001:db8:12:3400::/56", "2001:db8:12:3450::/60"}));
  EXPECT_EQ(NetworksOf(ClientOf("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:80")),
            (Networks{"2001:db8:1::/48", "2001:db8:1::/56", "2001:db8:1::/60"}));
  for (const char* client :
       {"", "::1", "fe80::1%2", "token:truck/64", "token:1.2.3.4", "certificate:a", "1.2.3", "/64"}) {
    EXPECT_EQ(NetworksOf(client), Networks()) << client;
  }
}

}  // namespace
}  // namespace voxserve::peer_test
