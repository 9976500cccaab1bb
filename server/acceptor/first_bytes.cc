#include "server/acceptor/first_bytes.h"

namespace voxserve {
namespace {

constexpr std::string_view kHttp2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static_assert(kHttp2.size() == kMostFirstBytes);
// A record of type handshake (22) and version 3.x, whose message is a ClientHello (1). Bytes 3 and 4, between the
// version and the message, are the record's length.
constexpr size_t kTlsBytes = 6;

}  // namespace

FirstBytes CheckHttp2(std::string_view received) {
  if (!kHttp2.starts_with(received)) return FirstBytes::kBad;
  return received.size() == kHttp2.size() ? FirstBytes::kGood : FirstBytes::kIncomplete;
}

FirstBytes CheckTls(std::string_view received) {
  if (received[0] != 22 || (received.size() > 1 && received[1] != 3)) return FirstBytes::kBad;
  if (received.size() < kTlsBytes) return FirstBytes::kIncomplete;
  return received[kTlsBytes - 1] == 1 ? FirstBytes::kGood : FirstBytes::kBad;
}

}  // namespace voxserve
