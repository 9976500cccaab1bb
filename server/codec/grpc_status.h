#pragma once

// Converts errors to the form in which gRPC sends them at a call's end: a grpc::Status whose details are the
// google.rpc.Status of rpc_status.h. Pure functions, any thread.

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "server/codec/rpc_status.h"

namespace voxserve {

// The trailer that gRPC's own retry policy reads: the milliseconds until the client may try again.
inline constexpr char kRetryPushbackTrailer[] = "grpc-retry-pushback-ms";

// Converts the end of a call. An error has the details of ToRpcStatus.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Does the same, and, if the error has a retry delay, adds the trailer kRetryPushbackTrailer to the call. Must be
// called before the call's Finish.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context);

}  // namespace voxserve
