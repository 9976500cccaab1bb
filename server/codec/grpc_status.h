#pragma once

// Errors on the wire. A grpc::Status whose details are a google.rpc.Status with ErrorInfo{reason, domain "voxserve"}
// and, where trying again makes sense, RetryInfo.

#include <grpcpp/grpcpp.h>

#include <string_view>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace voxserve {

inline constexpr std::string_view kErrorDomain = "voxserve";
// gRPC's own retry policy reads this trailer: milliseconds until the next try.
inline constexpr char kRetryPushbackTrailer[] = "grpc-retry-pushback-ms";

// Of an error, with its details, for where a status is part of a message. A status without a reason gets its code's
// name as the reason. Long messages are cut (the wire allows 8 KiB for all of a call's status), never inside a UTF-8
// character.
google::rpc::Status ToRpcStatus(const absl::Status& status);

grpc::Status ToGrpcStatus(const absl::Status& status);

// The same, and adds the pushback trailer to a call that is not finished yet where the status has a retry delay.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context);

}  // namespace voxserve
