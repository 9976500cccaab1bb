#pragma once

// Makes errors in the form in which the server sends them, for the services of FakeServer.

#include <grpcpp/grpcpp.h>

#include <string>

namespace voxserve::client {

// Returns the status with its reason, and with a retry delay if one is given.
grpc::Status Error(grpc::StatusCode code, const std::string& message, const std::string& reason,
                   int retry_milliseconds = 0);

grpc::Status ModelNotFound(const std::string& model);

// Blocks until the call is cancelled or its deadline has passed. Returns CANCELLED.
grpc::Status AwaitCancellation(grpc::ServerContext* context);

}  // namespace voxserve::client
