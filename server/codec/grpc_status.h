#pragma once

// Converts errors to the form in which clients get them: a grpc::Status whose details are a serialized
// google.rpc.Status, with ErrorInfo{reason, domain "voxserve"} and, if the error has a retry delay, RetryInfo. Pure
// functions, any thread.

#include <grpcpp/grpcpp.h>

#include <string_view>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace voxserve {

inline constexpr std::string_view kErrorDomain = "voxserve";
// The trailer that gRPC's own retry policy reads: the milliseconds until the client may try again.
inline constexpr char kRetryPushbackTrailer[] = "grpc-retry-pushback-ms";

// Converts an error and its details for a message that contains it, such as a frame's answer. If the error has no
// reason, the reason is the name of its code. A message of more than 1,500 bytes is cut, between UTF-8 characters,
// since the whole status of a call must fit into 8 KiB.
google::rpc::Status ToRpcStatus(const absl::Status& status);

// Converts the end of a call. An error has the details of ToRpcStatus.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Does the same, and, if the error has a retry delay, adds the trailer kRetryPushbackTrailer to the call. Must be
// called before the call's Finish.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context);

}  // namespace voxserve
