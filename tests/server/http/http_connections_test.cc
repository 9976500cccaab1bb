#include "server/http/http_connections.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

namespace voxserve::http_connections_test {
namespace {

using Connection = HttpConnections::Connection;

class HttpConnectionsTest : public testing::Test {
 protected:
  // Adds a connection that begins a second after the last added one.
  Connection* Add(const std::string& address) {
    now_ += std::chrono::seconds(1);
    sockaddr_storage storage = {};
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
      storage.ss_family = AF_INET;
    } else {
      EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr), 1) << address;
      storage.ss_family = AF_INET6;
    }
    return connections_.Add(next_descriptor_++, reinterpret_cast<const sockaddr*>(&storage), now_);
  }

  HttpConnections connections_{4};
  HttpConnections::Time now_;
  int next_descriptor_ = 3;
};

TEST_F(HttpConnectionsTest, HasSoManyPlaces) {
  EXPECT_EQ(connections_.Oldest(), nullptr);
  EXPECT_EQ(connections_.OldestOfTheLargestClient(), nullptr);
  Connection* const first = Add("10.0.0.1");
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(connections_.full());
    EXPECT_NE(Add("10.0.0.1"), nullptr);
  }
  EXPECT_TRUE(connections_.full());
  EXPECT_EQ(Add("10.0.0.1"), nullptr);
  EXPECT_EQ(connections_.Oldest(), first);
  connections_.Remove(first);
  EXPECT_FALSE(connections_.full());
  EXPECT_EQ(Add("10.0.0.1"), first);
  EXPECT_NE(connections_.Oldest(), first) << "it is the newest now";
}

TEST_F(HttpConnectionsTest, AClientThatOpensManyLosesItsOwn) {
  Connection* const probe = Add("10.0.0.1");
  Connection* const crowd = Add("10.0.0.2");
  EXPECT_EQ(connections_.OldestOfTheLargestClient(), probe);
  Add("10.0.0.2");
  EXPECT_EQ(connections_.Oldest(), probe);
  EXPECT_EQ(connections_.OldestOfTheLargestClient(), crowd);
  crowd->is_closing = true;
  EXPECT_EQ(connections_.OldestOfTheLargestClient(), probe) << "one that closes counts no more";
  probe->is_closing = true;
  EXPECT_NE(connections_.Oldest(), probe);
}

TEST_F(HttpConnectionsTest, AnIpv6NetworkIsOneClient) {
  Add("10.0.0.1");
  Connection* const network = Add("2001:db8:1:2::1");
  Add("2001:db8:1:2:ffff::1");
  EXPECT_EQ(connections_.OldestOfTheLargestClient(), network);
}

TEST_F(HttpConnectionsTest, AMappedIpv4AddressIsTheIpv4Client) {
  Add("2001:db8::1");
  Connection* const v4 = Add("10.0.0.1");
  Add("::ffff:10.0.0.1");
  Add("::ffff:10.0.0.2");
  EXPECT_EQ(connections_.OldestOfTheLargestClient(), v4);
}

}  // namespace
}  // namespace voxserve::http_connections_test
