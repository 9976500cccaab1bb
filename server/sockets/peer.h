#pragma once

// The names of whoever is at the other end of a connection: the peer is an address with its port, the client is
// whose share it takes.

#include <sys/socket.h>

#include <string>
#include <string_view>

namespace voxserve {

// The string that grpc::ServerContext::peer() gives for the address in gRPC 1.51.1: "ipv4:127.0.0.1:41234",
// "ipv6:%5B::1%5D:41234" (a URI, so that brackets are encoded), "ipv6:%5Bfe80::1%252%5D:41234" with a zone. An IPv4
// address inside an IPv6 one (::ffff:127.0.0.1) is written as IPv4. "" for other kinds of addresses.
std::string PeerOf(const sockaddr_storage& address);

// The client of a peer, whether its brackets are encoded or not: its IPv4 address, or the /64 of its IPv6 address
// ("2001:db8::/64"), since a host has all addresses of that. Addresses of this machine and of its links, which share a
// /64, stay themselves: "::1", "fe80::1%2". A string that is no peer of these kinds is returned as it is.
std::string ClientOf(std::string_view peer);

}  // namespace voxserve
