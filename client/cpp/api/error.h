#pragma once

// These functions read errors in programs. An absl::Status from this client carries the error details of google.rpc as
// payloads (type URL "type.googleapis.com/google.rpc.ErrorInfo" and so on). The server's details are unchanged; the
// client adds an ErrorInfo to its own errors.

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

// The client's own reasons. The server's documentation lists the server's reasons (QUEUE_FULL, MODEL_NOT_FOUND, ...).
inline constexpr absl::string_view kNoServer = "NO_SERVER";                 // nothing answers at the address
inline constexpr absl::string_view kTlsFailed = "TLS_FAILED";               // a certificate or TLS version was refused
inline constexpr absl::string_view kConnectionLost = "CONNECTION_LOST";     // the connection broke during the call
inline constexpr absl::string_view kMessageTooLarge = "MESSAGE_TOO_LARGE";  // exceeds Options::max_message_bytes
inline constexpr absl::string_view kClientTimeout = "CLIENT_TIMEOUT";       // no answer within the call's timeout
inline constexpr absl::string_view kMalformedResponse = "MALFORMED_RESPONSE";  // the answer contradicts the request
inline constexpr absl::string_view kUnsupportedOutput =
    "UNSUPPORTED_OUTPUT";                                       // the model lacks this output; also a server's reason
inline constexpr absl::string_view kSuperseded = "SUPERSEDED";  // a newer frame came; also a server's reason
inline constexpr absl::string_view kTooManyUnsent = "TOO_MANY_UNSENT";   // too many frames of a stream wait to be sent
inline constexpr absl::string_view kStreamEnded = "STREAM_ENDED";        // the stream takes no more frames
inline constexpr absl::string_view kDuplicateFrame = "DUPLICATE_FRAME";  // a frame with this id waits for its answer

// Returns the reason in the status's google.rpc.ErrorInfo; "" if there is none.
std::string ErrorReason(const absl::Status& status);

// Returns true if the reason is the server's, not this client's.
bool IsFromServer(const absl::Status& status);

// Returns the delay that the server asks for before a retry (google.rpc.RetryInfo); absl::InfiniteDuration() if it asks
// for none.
absl::Duration RetryDelay(const absl::Status& status);

// Returns the status with an ErrorInfo that has this reason and the client's domain.
absl::Status WithReason(absl::Status status, absl::string_view reason);

// Return the code, message and details of gRPC's status, or of a status within a message.
absl::Status FromGrpcStatus(const grpc::Status& status);
absl::Status FromRpcStatus(const google::rpc::Status& status);

}  // namespace voxserve::client
