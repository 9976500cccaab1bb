#pragma once

// What went wrong, for programs: an absl::Status from this client carries google.rpc's error details as payloads (type
// URL "type.googleapis.com/google.rpc.ErrorInfo" and so on), the server's as they came and the client's own.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace google::rpc {
class Status;
}
namespace grpc {
class Status;
}

namespace voxserve::client {

// Reasons that the client itself gives; the server's are listed in its documentation (QUEUE_FULL, MODEL_NOT_FOUND,
// ...).
inline constexpr absl::string_view kNoServer = "NO_SERVER";                    // nothing answers at the address
inline constexpr absl::string_view kTlsFailed = "TLS_FAILED";                  // the certificates do not fit
inline constexpr absl::string_view kConnectionLost = "CONNECTION_LOST";        // the connection broke during the call
inline constexpr absl::string_view kMessageTooLarge = "MESSAGE_TOO_LARGE";     // beyond Options::max_message_bytes
inline constexpr absl::string_view kClientTimeout = "CLIENT_TIMEOUT";          // no answer within the call's timeout
inline constexpr absl::string_view kMalformedResponse = "MALFORMED_RESPONSE";  // the answer contradicts the request
inline constexpr absl::string_view kUnsupportedOutput = "UNSUPPORTED_OUTPUT";  // the server's too: a model without it
inline constexpr absl::string_view kSuperseded = "SUPERSEDED";                 // the server's too: a newer frame came
inline constexpr absl::string_view kTooManyUnsent = "TOO_MANY_UNSENT";   // frames of a stream that wait to be sent
inline constexpr absl::string_view kStreamEnded = "STREAM_ENDED";        // it takes no more frames
inline constexpr absl::string_view kDuplicateFrame = "DUPLICATE_FRAME";  // one of this id waits for its answer

// google.rpc.ErrorInfo's reason; "" where there is none.
std::string ErrorReason(const absl::Status& status);

// Whether the reason is the server's, not this client's.
bool IsFromServer(const absl::Status& status);

// When to try again, as the server asked (google.rpc.RetryInfo); absl::InfiniteDuration() where it did not.
absl::Duration RetryDelay(const absl::Status& status);

// The status with an ErrorInfo of this reason.
absl::Status WithReason(absl::Status status, absl::string_view reason);

// Code, message and details of what gRPC returned, or of a status within a message.
absl::Status FromGrpcStatus(const grpc::Status& status);
absl::Status FromRpcStatus(const google::rpc::Status& status);

}  // namespace voxserve::client
