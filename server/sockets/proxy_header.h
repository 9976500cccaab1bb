#pragma once

// Reads the header of the PROXY protocol, by which a proxy (HAProxy, nginx, Envoy, a cloud's load balancer) says at the
// start of a connection from which address it comes. Version 1 is a line of text, version 2 is binary (W. Tarreau, The
// PROXY protocol, versions 1 & 2, 2020, sections 2.1 and 2.2).
//
// Whoever sends this header decides which client the server sees, so it is read from trusted proxies alone. Pure
// function; the bytes are untrusted.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace voxserve {

// The longest header that is read. Version 2 may attach more (TLVs), which proxies in use do not need.
inline constexpr size_t kMaxProxyHeaderBytes = 2048;

enum class ProxyHeaderState : uint8_t {
  kNone,        // the bytes begin with something else
  kIncomplete,  // more bytes are needed to tell
  kComplete,
  kBroken,
};

struct ProxyHeader {
  ProxyHeaderState state = ProxyHeaderState::kNone;
  size_t bytes = 0;  // of a complete header
  // The address in the form of PeerOf. "" if the proxy speaks for itself (a health check), or does not know.
  std::string peer;
};

// received: the first bytes of a connection, one or more.
ProxyHeader ParseProxyHeader(std::string_view received);

}  // namespace voxserve
