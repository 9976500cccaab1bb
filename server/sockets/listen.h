#pragma once

// ListenOn opens the sockets that a server listens on, one for each address of a host name.
//
// - "0.0.0.0" and "::" both mean every address, IPv4 and IPv6, as for gRPC's own ports: one socket takes both. On a
//   machine without IPv6 the socket takes only IPv4.
// - A name with several addresses ("localhost") gets a socket for each. An address that this machine does not have is
//   skipped if another one remains; an address in use is an error.
// - SO_REUSEADDR is set: a port can be taken again right after its server ended. SO_REUSEPORT is not: a second server
//   on the port would go unnoticed.
// - The sockets are non-blocking and close on exec.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/sockets/descriptor.h"

namespace voxserve {

// Opens the sockets. host: a name or address; an IPv6 address may have brackets. port: 0 for any free port, which is
// then the same for all sockets. Returns UNAVAILABLE with only the system's reason as message ("Address already in
// use"); ListenError (listen_error.h) completes the text.
absl::StatusOr<std::vector<Descriptor>> ListenOn(const std::string& host, int port);

// Returns the local port of a socket; 0 if it has none.
int PortOf(const Descriptor& socket);

}  // namespace voxserve
