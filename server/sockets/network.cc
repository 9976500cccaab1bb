#include "server/sockets/network.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/numbers.h"

namespace voxserve {
namespace {

constexpr int kMappedBits = 96;  // prefix of ::ffff:0:0/96: IPv4 addresses inside IPv6 (RFC 4291, section 2.5.5.2)

std::array<uint8_t, 16> Mapped(const in_addr& ipv4) {
  std::array<uint8_t, 16> bytes = {};
  bytes[10] = bytes[11] = 0xFF;
  std::memcpy(&bytes[12], &ipv4, sizeof(ipv4));
  return bytes;
}

bool IsMapped(const std::array<uint8_t, 16>& bytes) {
  static const std::array<uint8_t, 16> kPrefix = Mapped({});
  return std::memcmp(bytes.data(), kPrefix.data(), kMappedBits / 8) == 0;
}

bool BitAt(const std::array<uint8_t, 16>& bytes, int bit) { return (bytes[bit / 8] >> (7 - bit % 8) & 1) != 0; }

}  // namespace

absl::StatusOr<Network> Network::Parse(std::string_view text) {
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("\"", absl::Utf8SafeCEscape(std::string(text)), "\" ", why,
                                                   "; a network is written as 10.0.0.0/8 or 2001:db8::/32"));
  };
  const size_t slash = text.find('/');
  const std::string address(text.substr(0, slash));
  Network network;
  in_addr ipv4 = {};
  if (inet_pton(AF_INET, address.c_str(), &ipv4) == 1) {
    network.address_ = Mapped(ipv4);
    network.is_ipv4_ = true;
  } else if (inet_pton(AF_INET6, address.c_str(), network.address_.data()) == 1) {
    network.is_ipv4_ = IsMapped(network.address_);
    if (network.is_ipv4_) return wrong("is an IPv4 address inside an IPv6 one; write it as IPv4");
  } else {
    return wrong("has no address");
  }
  const int most_bits = network.is_ipv4_ ? 32 : 128;
  int num_bits = most_bits;
  if (slash != std::string_view::npos &&
      (!ParseInteger(std::string(text.substr(slash + 1)), &num_bits) || num_bits < 0 || num_bits > most_bits)) {
    return wrong(absl::StrCat("must have 0 to ", most_bits, " bits after the slash"));
  }
  network.num_bits_ = num_bits + (network.is_ipv4_ ? kMappedBits : 0);
  for (int bit = network.num_bits_; bit < 128; ++bit) {
    if (BitAt(network.address_, bit)) return wrong(absl::StrCat("has bits set behind the first ", num_bits));
  }
  return network;
}

bool Network::Contains(const sockaddr_storage& address) const {
  Bytes bytes = {};
  if (address.ss_family == AF_INET) {
    bytes = Mapped(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  } else if (address.ss_family == AF_INET6) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, bytes.size());
  } else {
    return false;
  }
  if (IsMapped(bytes) != is_ipv4_) return false;
  for (int bit = 0; bit < num_bits_; ++bit) {
    if (BitAt(bytes, bit) != BitAt(address_, bit)) return false;
  }
  return true;
}

absl::StatusOr<std::vector<Network>> ParseNetworks(std::string_view list) {
  std::vector<Network> networks;
  if (list.empty()) return networks;
  for (const std::string& text : std::vector<std::string>(absl::StrSplit(std::string(list), ','))) {
    absl::StatusOr<Network> network = Network::Parse(std::string(absl::StripAsciiWhitespace(text)));
    if (!network.ok()) return network.status();
    networks.push_back(*network);
  }
  return networks;
}

}  // namespace voxserve
