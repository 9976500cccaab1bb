#include "server/sockets/proxy_header.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/server/sockets/proxy_headers.h"

namespace voxserve::proxy_header_test {
namespace {

using State = ProxyHeaderState;

void ExpectPeer(const std::string& header, std::string_view peer) {
  const ProxyHeader parsed = ParseProxyHeader(header + "PRI * HTTP/2.0");
  EXPECT_EQ(parsed.state, State::kComplete);
  EXPECT_EQ(parsed.bytes, header.size()) << "what follows belongs to the client";
  EXPECT_EQ(parsed.peer, peer);
  for (size_t size = 1; size < header.size(); ++size) {
    EXPECT_EQ(ParseProxyHeader(header.substr(0, size)).state, State::kIncomplete) << size << " bytes";
  }
}

State StateOf(const std::string& received) { return ParseProxyHeader(received).state; }

TEST(ProxyHeaderTest, ReadsLines) {
  ExpectPeer("PROXY TCP4 192.0.2.1 198.51.100.1 41234 8500\r\n", "ipv4:192.0.2.1:41234");
  ExpectPeer("PROXY TCP6 2001:db8::1 2001:db8::2 41234 8500\r\n", "ipv6:%5B2001:db8::1%5D:41234");
  ExpectPeer("PROXY UNKNOWN\r\n", "");
  ExpectPeer("PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "");
}

TEST(ProxyHeaderTest, ReadsBinaryHeaders) {
  ExpectPeer(BinaryProxyHeader(0x21, 0x11, Ipv4Pair({192, 0, 2, 1}, 41234)), "ipv4:192.0.2.1:41234");
  ExpectPeer(BinaryProxyHeader(0x21, 0x11, Ipv4Pair({192, 0, 2, 1}, 41234) + std::string(100, 'x')),
             "ipv4:192.0.2.1:41234");  // attachments (TLVs) are skipped
  std::string ipv6(36, '\0');
  ipv6[0] = 0x20, ipv6[1] = 0x01, ipv6[15] = 7, ipv6[32] = 1, ipv6[33] = 2;
  ExpectPeer(BinaryProxyHeader(0x21, 0x21, ipv6), "ipv6:%5B2001::7%5D:258");
  ExpectPeer(BinaryProxyHeader(0x20, 0x00, ""), "");                               // the proxy's own health check
  ExpectPeer(BinaryProxyHeader(0x20, 0x11, Ipv4Pair({192, 0, 2, 1}, 41234)), "");  // LOCAL: its addresses do not count
  ExpectPeer(BinaryProxyHeader(0x21, 0x00, ""), "");                               // unknown address
  ExpectPeer(BinaryProxyHeader(0x21, 0x31, std::string(216, 'u')), "");            // a Unix socket
}

TEST(ProxyHeaderTest, OtherBytesAreNone) {
  EXPECT_EQ(StateOf("PRI * HTTP/2.0\r\n"), State::kNone);
  EXPECT_EQ(StateOf("\x16\x03\x01"), State::kNone);
  EXPECT_EQ(StateOf("GET / HTTP/1.1\r\n"), State::kNone);
  EXPECT_EQ(StateOf("\r\n\r\nxx"), State::kNone);
  EXPECT_EQ(StateOf("PR"), State::kIncomplete) << "of HTTP/2 or a line";
}

TEST(ProxyHeaderTest, RefusesBrokenLines) {
  EXPECT_EQ(StateOf("PROXY \r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY TCP4\r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY UDP4 192.0.2.1 198.51.100.1 1 2\r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY TCP4 192.0.2.256 198.51.100.1 1 2\r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n"), State::kBroken) << "of the other family";
  EXPECT_EQ(StateOf("PROXY TCP4 192.0.2.1 198.51.100.1 65536 2\r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY TCP4 192.0.2.1 198.51.100.1 -1 2\r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY TCP4 192.0.2.1 198.51.100.1 +1 2\r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY TCP4 192.0.2.1 198.51.100.1 \t1 2\r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY TCP4 192.0.2.1 198.51.100.1 1 2 3\r\n"), State::kBroken);
  EXPECT_EQ(StateOf("PROXY " + std::string(101, 'x')), State::kBroken) << "no line is so long";
}

TEST(ProxyHeaderTest, RefusesBrokenBinaryHeaders) {
  EXPECT_EQ(StateOf(BinaryProxyHeader(0x11, 0x11, Ipv4Pair({1, 2, 3, 4}, 5))), State::kBroken) << "version 1";
  EXPECT_EQ(StateOf(BinaryProxyHeader(0x22, 0x11, Ipv4Pair({1, 2, 3, 4}, 5))), State::kBroken) << "no such command";
  EXPECT_EQ(StateOf(BinaryProxyHeader(0x21, 0x11, "12345678901")), State::kBroken) << "too short for addresses";
  EXPECT_EQ(StateOf(BinaryProxyHeader(0x21, 0x21, std::string(35, '1'))), State::kBroken);
  const std::string longest(kMaxProxyHeaderBytes - 16, 'x');
  EXPECT_EQ(StateOf(BinaryProxyHeader(0x21, 0x11, longest)), State::kComplete);
  EXPECT_EQ(StateOf(BinaryProxyHeader(0x21, 0x11, longest + "x")), State::kBroken);
}

}  // namespace
}  // namespace voxserve::proxy_header_test
