#include "server/sockets/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/sockets/socket_address.h"

namespace voxserve::network_test {
namespace {

using testing::HasSubstr;

bool Contains(const char* network, const sockaddr_storage& address) {
  const absl::StatusOr<Network> parsed = Network::Parse(network);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() && parsed->Contains(address);
}

std::string WhyNot(const char* network) { return std::string(Network::Parse(network).status().message()); }

TEST(NetworkTest, HoldsTheAddressesThatShareItsFirstBits) {
  EXPECT_TRUE(Contains("10.0.0.0/8", Ipv4("10.255.0.1", 80)));
  EXPECT_FALSE(Contains("10.0.0.0/8", Ipv4("11.0.0.1", 80)));
  EXPECT_TRUE(Contains("10.1.2.4/30", Ipv4("10.1.2.7", 80)));
  EXPECT_FALSE(Contains("10.1.2.4/30", Ipv4("10.1.2.8", 80)));
  EXPECT_TRUE(Contains("10.1.2.3", Ipv4("10.1.2.3", 80))) << "one address";
  EXPECT_FALSE(Contains("10.1.2.3", Ipv4("10.1.2.2", 80)));
  EXPECT_TRUE(Contains("2001:db8::/32", Ipv6("2001:db8:ffff::1", 80)));
  EXPECT_FALSE(Contains("2001:db8::/32", Ipv6("2001:db9::1", 80)));
  EXPECT_TRUE(Contains("::1", Ipv6("::1", 80)));
}

TEST(NetworkTest, KeepsTheFamiliesApart) {
  EXPECT_TRUE(Contains("0.0.0.0/0", Ipv4("192.0.2.1", 80)));
  EXPECT_TRUE(Contains("0.0.0.0/0", Ipv6("::ffff:192.0.2.1", 80))) << "IPv4 inside IPv6 is IPv4";
  EXPECT_FALSE(Contains("0.0.0.0/0", Ipv6("2001:db8::1", 80)));
  EXPECT_TRUE(Contains("::/0", Ipv6("2001:db8::1", 80)));
  EXPECT_FALSE(Contains("::/0", Ipv4("192.0.2.1", 80)));
  EXPECT_FALSE(Contains("::/0", sockaddr_storage{})) << "a Unix socket";
}

TEST(NetworkTest, SaysWhatIsWrong) {
  EXPECT_THAT(WhyNot("proxy.example"), HasSubstr("\"proxy.example\" has no address"));
  EXPECT_THAT(WhyNot(""), HasSubstr("has no address"));
  EXPECT_THAT(WhyNot("10.0.0.0/33"), HasSubstr("must have 0 to 32 bits after the slash"));
  EXPECT_THAT(WhyNot("10.0.0.0/-1"), HasSubstr("must have 0 to 32 bits"));
  EXPECT_THAT(WhyNot("10.0.0.0/+8"), HasSubstr("must have 0 to 32 bits"));
  EXPECT_THAT(WhyNot("10.0.0.0/ 8"), HasSubstr("must have 0 to 32 bits"));
  EXPECT_THAT(WhyNot("10.0.0.0/"), HasSubstr("must have 0 to 32 bits"));
  EXPECT_THAT(WhyNot("2001:db8::/129"), HasSubstr("must have 0 to 128 bits"));
  EXPECT_THAT(WhyNot("10.0.0.1/8"), HasSubstr("has bits set behind the first 8"));
  EXPECT_THAT(WhyNot("::ffff:10.0.0.1"), HasSubstr("write it as IPv4"));
}

TEST(NetworkTest, ListsHaveCommas) {
  EXPECT_EQ(ParseNetworks("")->size(), 0u);
  EXPECT_EQ(ParseNetworks("10.0.0.0/8, ::1")->size(), 2u);
  EXPECT_THAT(std::string(ParseNetworks("10.0.0.0/8,").status().message()), HasSubstr("\"\" has no address"));
}

}  // namespace
}  // namespace voxserve::network_test
