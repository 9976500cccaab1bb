#pragma once

// ListenError explains why a server cannot listen on a port, since the libraries that listen do not.

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace voxserve {

// Tries to listen on the address, to get the system's reason. Returns UNAVAILABLE: "cannot listen for gRPC on
// 127.0.0.1:8500: Address already in use (--port chooses another port, --host another address)".
absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag);
// Returns UNAVAILABLE with the text of the function above, but with `reason` in place of "Address already in use". For
// callers that have the system's reason already, so that this function does not try to listen. `flag` (of the port) and
// `host_flag` are names of flags without "--".
absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag,
                         std::string_view reason, const std::string& host_flag = "host");

// WithBrackets adds the brackets of an IPv6 address: "::1" and "[::1]" become "[::1]". WithoutBrackets removes them.
// Other texts stay the same.
std::string WithBrackets(const std::string& host);
std::string WithoutBrackets(const std::string& host);

}  // namespace voxserve
