#pragma once

// Converts errors for the wire: to a grpc::Status whose details are a google.rpc.Status with ErrorInfo{reason, domain
// "voxserve"} and, if the client should try again, RetryInfo.

#include <grpcpp/grpcpp.h>

#include <string_view>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace voxserve {

inline constexpr std::string_view kErrorDomain = "voxserve";
// gRPC's own retry policy reads this trailer: milliseconds until the next try.
inline constexpr char kRetryPushbackTrailer[] = "grpc-retry-pushback-ms";

// Converts an error with its details, for a status that is part of a message. A status without a reason gets its code's
// name as the reason. Long messages are cut (the wire allows 8 KiB for all of a call's status), never inside a UTF-8
// character.
google::rpc::Status ToRpcStatus(const absl::Status& status);

grpc::Status ToGrpcStatus(const absl::Status& status);

// Does the same, and adds the pushback trailer to the unfinished call if the status has a retry delay.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context);

}  // namespace voxserve
