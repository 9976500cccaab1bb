// Tests Acceptor with connections that trusted proxies open for clients (PROXY protocol).

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/acceptor/acceptor_fixture.h"
#include "tests/server/sockets/proxy_headers.h"

namespace voxserve::acceptor_proxy_test {
namespace {

constexpr const char* kProxy = "127.0.0.7";

class AcceptorProxyTest : public AcceptorTest {
 protected:
  void StartBehindProxy(Acceptor::Options options) {
    options.trusted_proxies = *ParseNetworks("127.0.0.7/32");
    options.proxied_peers = &proxied_peers_;
    StartWith(std::move(options));
  }

  static std::string HeaderOf(uint8_t host) {
    return BinaryProxyHeader(0x21, 0x11, Ipv4Pair({203, 0, 113, host}, 1000));
  }

  // Returns a connection of the proxy for the client 203.0.113.`host`, after it has reached the keeper.
  RawClient Proxied(uint8_t host) {
    const size_t before = keeper_.size();
    RawClient client = RawClient::To(port(), kProxy);
    client.Send(HeaderOf(host) + std::string(kPreface));
    EXPECT_TRUE(keeper_.Await(before + 1));
    return client;
  }

  ProxiedPeers proxied_peers_;
};

TEST_F(AcceptorProxyTest, TakesTheHeaderOutAndKnowsTheClient) {
  StartBehindProxy({});
  const RawClient client = Proxied(9);
  std::string bytes(64, '\0');
  bytes.resize(static_cast<size_t>(recv(keeper_.at(0), bytes.data(), bytes.size(), 0)));
  EXPECT_EQ(bytes, kPreface) << "gRPC sees nothing of the header";
  EXPECT_EQ(proxied_peers_.SourceOf(client.peer()), "ipv4:203.0.113.9:1000");
  EXPECT_EQ(proxied_peers_.ClientOf(client.peer()), "203.0.113.9");
}

TEST_F(AcceptorProxyTest, HeadersMayComeInParts) {
  StartBehindProxy({});
  RawClient client = RawClient::To(port(), kProxy);
  const std::string bytes = "PROXY TCP4 203.0.113.1 127.0.0.1 1000 8500\r\n" + std::string(kPreface);
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(keeper_.size(), 0);
    client.Send(bytes.substr(i, 1));
    if (i % 8 == 0) absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_TRUE(keeper_.Await(1));
  EXPECT_EQ(proxied_peers_.ClientOf(client.peer()), "203.0.113.1");
}

TEST_F(AcceptorProxyTest, TheLimitOfAClientHoldsForEachClientOfTheProxy) {
  StartBehindProxy({.max_connections = 100, .max_client_connections = 2});
  std::vector<RawClient> clients;
  for (uint8_t host = 1; host <= 5; ++host) {
    clients.push_back(Proxied(host));
    clients.push_back(Proxied(host));
  }
  EXPECT_EQ(acceptor_->open_connections(), 10) << "the proxy's address has no limit of its own";
  RawClient third = RawClient::To(port(), kProxy);
  third.Send(HeaderOf(1) + std::string(kPreface));
  EXPECT_TRUE(third.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kClientLimit, 1));
  EXPECT_TRUE(watcher_.AwaitOpen(10));
  // Once a connection has ended, its client may have another.
  clients[0].Close();
  keeper_.LetGo(0);
  ASSERT_TRUE(watcher_.AwaitOpen(9));
  const RawClient next = Proxied(1);
  EXPECT_TRUE(watcher_.AwaitOpen(10));
}

TEST_F(AcceptorProxyTest, AnUnwelcomeClientIsRefusedAndOthersAreNot) {
  StartBehindProxy({.is_welcome = [](const std::string& client) { return client != "203.0.113.6"; }});
  RawClient unwelcome = RawClient::To(port(), kProxy);
  unwelcome.Send(HeaderOf(6) + std::string(kPreface));
  EXPECT_TRUE(unwelcome.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kUnfinishedCalls, 1));
  const RawClient welcome = Proxied(5);
  EXPECT_TRUE(watcher_.AwaitOpen(1));
}

TEST_F(AcceptorProxyTest, AProxyMaySpeakForItself) {
  StartBehindProxy({});
  const RawClient without_header = Established(kProxy);
  EXPECT_EQ(proxied_peers_.ClientOf(without_header.peer()), kProxy);
  RawClient check = RawClient::To(port(), kProxy);
  check.Send(BinaryProxyHeader(0x20, 0, "") + std::string(kPreface));
  EXPECT_TRUE(keeper_.Await(2));
  EXPECT_EQ(proxied_peers_.ClientOf(check.peer()), kProxy);
}

TEST_F(AcceptorProxyTest, NobodyElseMayNameAClient) {
  StartBehindProxy({});
  RawClient liar = RawClient::To(port(), "127.0.0.8");
  liar.Send(HeaderOf(1) + std::string(kPreface));
  EXPECT_TRUE(liar.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNotHttp2, 1));
  EXPECT_EQ(proxied_peers_.ClientOf(liar.peer()), "127.0.0.8");
  EXPECT_EQ(keeper_.size(), 0);
}

TEST_F(AcceptorProxyTest, BrokenAndMissingHeadersEndTheConnection) {
  StartBehindProxy({.first_bytes_timeout = absl::Milliseconds(300)});
  RawClient broken = RawClient::To(port(), kProxy);
  broken.Send("PROXY TCP4 nobody nowhere 1 2\r\n");
  EXPECT_TRUE(broken.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kProxyHeader, 1));
  RawClient silent = RawClient::To(port(), kProxy);
  RawClient partial = RawClient::To(port(), kProxy);
  partial.Send(HeaderOf(1).substr(0, 20));
  RawClient no_preface = RawClient::To(port(), kProxy);
  no_preface.Send(HeaderOf(2));
  for (RawClient* client : {&silent, &partial, &no_preface}) EXPECT_TRUE(client->IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNoFirstBytes, 3));
  RawClient not_http2 = RawClient::To(port(), kProxy);
  not_http2.Send(HeaderOf(3) + "GET / HTTP/1.1\r\n");
  EXPECT_TRUE(not_http2.IsEndedWithin());
  EXPECT_TRUE(watcher_.AwaitClosed(connection_reason::kNotHttp2, 1));
  EXPECT_TRUE(watcher_.AwaitOpen(0));
}

}  // namespace
}  // namespace voxserve::acceptor_proxy_test
