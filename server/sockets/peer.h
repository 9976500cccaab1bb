#pragma once

// These functions name the other end of a connection. The peer is an address with its port. The client is the address
// or network for which limits are counted. All functions are pure.

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

namespace voxserve {

// Returns the text of grpc::ServerContext::peer() for the address in gRPC 1.51.1: "ipv4:127.0.0.1:41234",
// "ipv6:%5B::1%5D:41234" (a URI, so brackets are encoded), "ipv6:%5Bfe80::1%252%5D:41234" with a zone. An IPv4 address
// inside an IPv6 one (::ffff:127.0.0.1) is written as IPv4. "" for other kinds of addresses.
std::string PeerOf(const sockaddr_storage& address);

// Returns the client of a peer, with or without encoded brackets: its IPv4 address, or the /64 of its IPv6 address
// ("2001:db8::/64"), since one host may use all addresses of a /64. The loopback address and link-local addresses are
// returned whole ("::1", "fe80::1%2"), since all hosts of a link share one /64. A text that is not a peer of IPv4 or
// IPv6 is returned unchanged.
std::string ClientOf(std::string_view peer);

// Returns the wider networks of a client of ClientOf, the widest first: the /16 and the /24 of an IPv4 address, and the
// /48, /56 and /60 of a /64 of IPv6, since these are the sizes in which addresses are given out. Returns none for other
// clients.
std::vector<std::string> NetworksOf(const std::string& client);

}  // namespace voxserve
