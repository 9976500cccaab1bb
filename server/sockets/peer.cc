#include "server/sockets/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace voxserve {
namespace {

constexpr std::string_view kIpv4 = "ipv4:";
constexpr std::string_view kIpv6 = "ipv6:";

std::string Ipv4Peer(const in_addr& address, in_port_t port) {
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return absl::StrCat("ipv4:", text, ":", ntohs(port));
}

std::string Ipv6Peer(const sockaddr_in6& address) {
  if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr)) {
    in_addr inner = {};
    std::memcpy(&inner, &address.sin6_addr.s6_addr[12], sizeof(inner));
    return Ipv4Peer(inner, address.sin6_port);
  }
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof(text));
  const std::string zone = address.sin6_scope_id == 0 ? "" : absl::StrCat("%25", address.sin6_scope_id);
  return absl::StrCat("ipv6:%5B", text, zone, "%5D:", ntohs(address.sin6_port));
}

// Returns the network of an IPv6 address with this number of bits in its prefix, a multiple of 4.
std::string Ipv6Network(in6_addr address, int num_bits) {
  for (int byte = num_bits / 8; byte < 16; ++byte) {
    address.s6_addr[byte] &= static_cast<uint8_t>(byte == num_bits / 8 && num_bits % 8 != 0 ? 0xF0 : 0);
  }
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &address, text, sizeof(text));
  return absl::StrCat(text, "/", num_bits);
}

// Returns the /64 network of an IPv6 address, since a host may use all addresses of its /64 network. Other addresses
// are returned as they are. address: without brackets, possibly with a zone ("%eth0").
std::string NetworkOf(const std::string& address) {
  const std::string without_zone = address.substr(0, address.find('%'));
  in6_addr network = {};
  if (inet_pton(AF_INET6, without_zone.c_str(), &network) != 1) return address;
  if (IN6_IS_ADDR_LOOPBACK(&network) || IN6_IS_ADDR_LINKLOCAL(&network)) return address;
  return Ipv6Network(network, 64);
}

}  // namespace

std::string PeerOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    return Ipv4Peer(ipv4.sin_addr, ipv4.sin_port);
  }
  if (address.ss_family == AF_INET6) return Ipv6Peer(reinterpret_cast<const sockaddr_in6&>(address));
  return "";
}

std::string ClientOf(std::string_view peer) {
  const size_t port = peer.rfind(':');
  if (peer.starts_with(kIpv4) && port > kIpv4.size()) {
    return std::string(peer.substr(kIpv4.size(), port - kIpv4.size()));
  }
  if (peer.starts_with(kIpv6)) {
    const std::string decoded =
        absl::StrReplaceAll(std::string(peer.substr(kIpv6.size())), {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
    const size_t end = decoded.rfind("]:");
    if (decoded.starts_with('[') && end != std::string::npos) return NetworkOf(decoded.substr(1, end - 1));
  }
  return std::string(peer);
}

std::vector<std::string> NetworksOf(const std::string& client) {
  in_addr ipv4 = {};
  if (inet_pton(AF_INET, client.c_str(), &ipv4) == 1) {
    const size_t last = client.rfind('.');
    const size_t third = client.rfind('.', last - 1);
    return {client.substr(0, third) + ".0.0/16", client.substr(0, last) + ".0/24"};
  }
  in6_addr ipv6 = {};
  if (!absl::EndsWith(client, "/64") ||
      inet_pton(AF_INET6, std::string(absl::StripSuffix(client, "/64")).c_str(), &ipv6) != 1) {
    return {};
  }
  return {Ipv6Network(ipv6, 48), Ipv6Network(ipv6, 56), Ipv6Network(ipv6, 60)};
}

}  // namespace voxserve
