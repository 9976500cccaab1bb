#pragma once

// Private to the library: what gRPC itself does for a client whose server fails, as a service config says.
//
// Infer, ListModels and GetModel change nothing on a server, so gRPC may make them again where a server is UNAVAILABLE:
// it cannot be reached, the connection broke, it drains, its GPU or the model there failed (another server's may be
// well), or its model is loading (then after the time that it asks for). The deadline holds for all attempts together. An overloaded server (RESOURCE_EXHAUSTED) is not asked again:
// that would add load. See https://github.com/grpc/proposal/blob/master/A6-client-retries.md.

#include <string>

#include "absl/strings/string_view.h"

namespace voxserve::client {

inline constexpr int kMaxAttempts = 5;  // gRPC's own limit

// Whether the address has a scheme that may name several servers (dns:, ipv4:, ipv6:). Calls are balanced among them.
bool NamesServers(absl::string_view address);

// Returns gRPC's service config in JSON.
std::string ServiceConfig(absl::string_view address, int max_attempts);

}  // namespace voxserve::client
