#include "server/sockets/proxy_header.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/base/numbers.h"
#include "server/sockets/peer.h"

namespace voxserve {
namespace {

using State = ProxyHeaderState;

constexpr std::string_view kTextSignature = "PROXY ";
constexpr size_t kMaxTextBytes = 107;  // section 2.1 of the PROXY protocol, with the end of the line
constexpr std::string_view kBinarySignature("\r\n\r\n\0\r\nQUIT\n", 12);
constexpr size_t kBinaryFixedBytes = 16;  // signature, version and command, family and protocol, length

// Returns true if `received` begins with the signature, or is itself a beginning of the signature.
bool MayBegin(std::string_view received, std::string_view signature) {
  const size_t size = std::min(received.size(), signature.size());
  return received.substr(0, size) == signature.substr(0, size);
}

uint16_t BigEndian16(std::string_view bytes) {
  return static_cast<uint16_t>(static_cast<uint8_t>(bytes[0]) << 8 | static_cast<uint8_t>(bytes[1]));
}

sockaddr_storage Address(int family, const void* address, uint16_t port) {
  sockaddr_storage storage = {};
  if (family == AF_INET) {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(storage);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    std::memcpy(&ipv4.sin_addr, address, sizeof(ipv4.sin_addr));
  } else {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(storage);
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    std::memcpy(&ipv6.sin6_addr, address, sizeof(ipv6.sin6_addr));
  }
  return storage;
}

// Parses a header of version 1, such as "PROXY TCP4 192.0.2.1 198.51.100.1 41234 8500\r\n".
ProxyHeader ParseText(std::string_view received) {
  const size_t end = received.substr(0, kMaxTextBytes).find("\r\n");
  if (end == std::string_view::npos) {
    return {.state = received.size() < kMaxTextBytes ? State::kIncomplete : State::kBroken};
  }
  const std::vector<std::string> words = absl::StrSplit(std::string(received.substr(0, end)), ' ');
  ProxyHeader header{.state = State::kComplete, .bytes = end + 2};
  if (words[1] == "UNKNOWN") return header;
  const int family = words[1] == "TCP4" ? AF_INET : words[1] == "TCP6" ? AF_INET6 : AF_UNSPEC;
  in6_addr address = {};  // holds an IPv4 address as well
  uint32_t port = 0;
  if (family == AF_UNSPEC || words.size() != 6 || inet_pton(family, words[2].c_str(), &address) != 1 ||
      !ParseInteger(words[4], &port) || port > 65535) {
    return {.state = State::kBroken};
  }
  header.peer = PeerOf(Address(family, &address, static_cast<uint16_t>(port)));
  return header;
}

ProxyHeader ParseBinary(std::string_view received) {
  if (received.size() < kBinaryFixedBytes) return {.state = State::kIncomplete};
  const auto version_and_command = static_cast<uint8_t>(received[12]);
  const auto family_and_protocol = static_cast<uint8_t>(received[13]);
  const size_t length = BigEndian16(received.substr(14));
  const bool is_local = version_and_command == 0x20, is_proxied = version_and_command == 0x21;
  if ((!is_local && !is_proxied) || kBinaryFixedBytes + length > kMaxProxyHeaderBytes) return {.state = State::kBroken};
  if (received.size() < kBinaryFixedBytes + length) return {.state = State::kIncomplete};
  ProxyHeader header{.state = State::kComplete, .bytes = kBinaryFixedBytes + length};
  if (is_local) return header;
  const std::string_view addresses = received.substr(kBinaryFixedBytes, length);
  switch (family_and_protocol) {
    case 0x11:  // TCP over IPv4: source, destination, their ports
      if (length < 12) return {.state = State::kBroken};
      header.peer = PeerOf(Address(AF_INET, addresses.data(), BigEndian16(addresses.substr(8))));
      return header;
    case 0x21:  // TCP over IPv6
      if (length < 36) return {.state = State::kBroken};
      header.peer = PeerOf(Address(AF_INET6, addresses.data(), BigEndian16(addresses.substr(32))));
      return header;
    default:  // unknown, UDP or a Unix socket: the header has no client's address
      return header;
  }
}

}  // namespace

ProxyHeader ParseProxyHeader(std::string_view received) {
  if (MayBegin(received, kTextSignature)) {
    if (received.size() < kTextSignature.size()) return {.state = State::kIncomplete};
    return ParseText(received);
  }
  if (MayBegin(received, kBinarySignature)) return ParseBinary(received);
  return {.state = State::kNone};
}

}  // namespace voxserve
