#pragma once

// Private to the library: makes the service config by which gRPC retries and balances a client's calls.
//
// Infer, ListModels and GetModel change nothing on a server, so gRPC may repeat them if a server is UNAVAILABLE. That
// is the case if the server cannot be reached, its connection broke, it drains, its GPU or the model failed there
// (another server's may work), or its model is loading (gRPC then waits for the time that the server asks for). The
// deadline holds for all attempts together. A call that an overloaded server refused (RESOURCE_EXHAUSTED) is not
// repeated, since that would add load. See https://github.com/grpc/proposal/blob/master/A6-client-retries.md.

#include <string>

#include "absl/strings/string_view.h"

namespace voxserve::client {

inline constexpr int kMaxAttempts = 5;  // gRPC's own limit

// Returns whether the address has a scheme that may name several servers (dns:, ipv4:, ipv6:). gRPC then balances calls
// among them.
bool NamesServers(absl::string_view address);

// Returns gRPC's service config in JSON. max_attempts: 1 to kMaxAttempts; 1: no retries.
std::string ServiceConfig(absl::string_view address, int max_attempts);

}  // namespace voxserve::client
