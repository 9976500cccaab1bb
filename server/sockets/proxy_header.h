#pragma once

// ParseProxyHeader reads the header of the PROXY protocol. With it a proxy (HAProxy, nginx, Envoy, a cloud's load
// balancer) says at the start of a connection for which client address it opened the connection. Version 1 is a line of
// text, version 2 is binary (W. Tarreau, The PROXY protocol, versions 1 & 2, 2020, sections 2.1 and 2.2).
//
// Whoever sends this header decides which client the server sees, so the acceptor reads it from trusted proxies only.
// The function is pure, and safe for any bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace voxserve {

// The most bytes of a header that is accepted. Version 2 allows longer headers (with many TLVs), which common proxies
// do not send.
inline constexpr size_t kMaxProxyHeaderBytes = 2048;

enum class ProxyHeaderState : uint8_t {
  kNone,        // the bytes do not begin with a PROXY header
  kIncomplete,  // more bytes are needed to tell
  kComplete,
  kBroken,
};

struct ProxyHeader {
  ProxyHeaderState state = ProxyHeaderState::kNone;
  size_t bytes = 0;  // length of a complete header
  // The client's address and port in the form of PeerOf (peer.h). "" if the proxy connects for itself (a health check),
  // or does not know the client.
  std::string peer;
};

// received: the first bytes of a connection, at least one.
ProxyHeader ParseProxyHeader(std::string_view received);

}  // namespace voxserve
