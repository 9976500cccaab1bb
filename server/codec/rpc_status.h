#pragma once

// Converts errors to the message that clients get: a google.rpc.Status with ErrorInfo{reason, domain "voxserve"} and,
// if the error has a retry delay, RetryInfo. Needs no gRPC. Pure functions, any thread.

#include <string_view>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace voxserve {

inline constexpr std::string_view kErrorDomain = "voxserve";

// Converts an error and its details for a message that contains it, such as a frame's answer. If the error has no
// reason, the reason is the name of its code. A message of more than 1,500 bytes is cut, between UTF-8 characters,
// since the whole status of a call must fit into 8 KiB.
google::rpc::Status ToRpcStatus(const absl::Status& status);

}  // namespace voxserve
