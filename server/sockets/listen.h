#pragma once

// Opens the sockets that a server listens on, one for each address of a host name.
//
// - "0.0.0.0" and "::" mean every address, IPv4 and IPv6 alike, as they do for gRPC's own ports: one socket takes both.
//   Where the machine has no IPv6, the socket takes IPv4 alone.
// - A name with several addresses ("localhost") gets a socket for each. An address that this machine does not have is
//   left out as long as another remains; one that is in use is an error.
// - SO_REUSEADDR is set: a port can be taken again right after its server ended. SO_REUSEPORT is not: a second server
//   on the port would go unnoticed.
// - The sockets are non-blocking and close on exec.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/sockets/descriptor.h"

namespace voxserve {

// host: a name or address, with or without an IPv6 address's brackets. port: 0 for any, the same one for all sockets.
// UNAVAILABLE with the system's reason alone ("Address already in use"); ListenError adds the rest.
absl::StatusOr<std::vector<Descriptor>> ListenOn(const std::string& host, int port);

// The local port of a socket; 0 where it has none.
int PortOf(const Descriptor& socket);

}  // namespace voxserve
