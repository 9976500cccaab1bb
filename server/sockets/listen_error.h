#pragma once

// Explains why a server cannot listen on a port, since the libraries that listen do not.

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace voxserve {

// Tries the address itself to get the system's reason. UNAVAILABLE: "cannot listen for gRPC on 127.0.0.1:8500: Address
// already in use (--port chooses another port, --host another address)".
absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag);
// Does the same if the caller knows the system's reason.
absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag,
                         std::string_view reason, const std::string& host_flag = "host");

// Adds brackets: "::1", "[::1]" -> "[::1]"; other texts stay the same. The other function removes them.
std::string WithBrackets(const std::string& host);
std::string WithoutBrackets(const std::string& host);

}  // namespace voxserve
