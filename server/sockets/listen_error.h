#pragma once

// Says in words why a port cannot be listened on: libraries that listen do not.

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace voxserve {

// Tries the address itself for the system's reason. UNAVAILABLE: "cannot listen for gRPC on 127.0.0.1:8500: Address
// already in use (--port chooses another)".
absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag);
// The same for a caller who knows the system's reason.
absl::Status ListenError(const std::string& what, const std::string& host, int port, const std::string& flag,
                         std::string_view reason);

// "::1", "[::1]" -> "[::1]"; anything else as it is. And back.
std::string WithBrackets(const std::string& host);
std::string WithoutBrackets(const std::string& host);

}  // namespace voxserve
