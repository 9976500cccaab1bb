#pragma once

// Errors as the server sends them, for the services of FakeServer.

#include <grpcpp/grpcpp.h>

#include <string>

namespace voxserve::client {

// The status with its reason, and a retry delay where there is one.
grpc::Status Error(grpc::StatusCode code, const std::string& message, const std::string& reason,
                   int retry_milliseconds = 0);

grpc::Status ModelNotFound(const std::string& model);

// Blocks until the call is cancelled or past its deadline. CANCELLED.
grpc::Status AwaitCancellation(grpc::ServerContext* context);

}  // namespace voxserve::client
