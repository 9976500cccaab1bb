#include "server/acceptor/first_bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace voxserve::first_bytes_test {
namespace {

TEST(FirstBytesTest, Http2BeginsWithItsPreface) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  ASSERT_EQ(preface.size(), kMostFirstBytes);
  for (size_t size = 1; size < preface.size(); ++size) {
    EXPECT_EQ(CheckHttp2(preface.substr(0, size)), FirstBytes::kIncomplete) << size;
    std::string other = preface.substr(0, size);
    other.back() ^= 1;
    EXPECT_EQ(CheckHttp2(other), FirstBytes::kBad) << size;
  }
  EXPECT_EQ(CheckHttp2(preface), FirstBytes::kGood);
  EXPECT_EQ(CheckHttp2("GET / HTTP/1.1\r\n"), FirstBytes::kBad);
  EXPECT_EQ(CheckHttp2("\x16\x03\x01"), FirstBytes::kBad);
}

TEST(FirstBytesTest, TlsBeginsWithAClientHelloOfAnyLength) {
  const std::string hello("\x16\x03\x01\x02\x07\x01\xaa\xbb", 8);
  for (size_t size = 1; size < hello.size(); ++size) {
    EXPECT_EQ(CheckTls(hello.substr(0, size)), size < 6 ? FirstBytes::kIncomplete : FirstBytes::kGood) << size;
  }
  EXPECT_EQ(CheckTls(std::string("\x16\x03\x04\0\1\1", 6)), FirstBytes::kGood);
  EXPECT_EQ(CheckTls("\x15"), FirstBytes::kBad) << "an alert";
  EXPECT_EQ(CheckTls("\x16\x02"), FirstBytes::kBad) << "SSL 2";
  EXPECT_EQ(CheckTls(std::string("\x16\x03\x01\x02\x07\x02", 6)), FirstBytes::kBad) << "a ServerHello";
  EXPECT_EQ(CheckTls("PRI * HTTP/2.0"), FirstBytes::kBad);
}

}  // namespace
}  // namespace voxserve::first_bytes_test
