#pragma once

// A reason is a stable, machine-readable name of an error, such as "BAD_LAYOUT". It is stored in the absl::Status as a
// payload; server/codec/grpc_status converts it to google.rpc.ErrorInfo. Other headers write a code and its reason as
// "INVALID_ARGUMENT (BAD_LAYOUT)". Any thread may call these functions.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace voxserve {

// Reasons are in UPPER_SNAKE_CASE. They are part of the API and never renamed.
namespace error_reason {
inline constexpr std::string_view kBadLayout = "BAD_LAYOUT";  // a cloud's bytes, steps and fields do not fit together
inline constexpr std::string_view kMissingField = "MISSING_FIELD";  // the cloud lacks an axis or a required feature
inline constexpr std::string_view kTooManyPoints = "TOO_MANY_POINTS";
inline constexpr std::string_view kTooManyVoxels = "TOO_MANY_VOXELS";
inline constexpr std::string_view kCoordinateLimits = "COORDINATE_LIMITS";  // beyond the limits of a key, or of float32
inline constexpr std::string_view kBadSweeps = "BAD_SWEEPS";                // the model cannot run several sweeps
inline constexpr std::string_view kBadSample = "BAD_SAMPLE";  // the cloud cannot give the sample that is asked for
inline constexpr std::string_view kBadPose = "BAD_POSE";
inline constexpr std::string_view kBadStamp = "BAD_STAMP";  // no valid time, or older than the sweep before it
inline constexpr std::string_view kMissingCloud = "MISSING_CLOUD";
inline constexpr std::string_view kMissingStamp = "MISSING_STAMP";  // a sweep has no time
inline constexpr std::string_view kBadStream = "BAD_STREAM";        // a wrong config, or messages in the wrong order
inline constexpr std::string_view kSuperseded = "SUPERSEDED";       // a newer frame of the stream arrived
inline constexpr std::string_view kFrameIncomplete = "FRAME_INCOMPLETE";  // parts of a frame did not come
inline constexpr std::string_view kBadPart = "BAD_PART";  // a part of a frame came twice, or its index is not possible
inline constexpr std::string_view kFrameTooLarge = "FRAME_TOO_LARGE";  // the parts of a frame are too large together
inline constexpr std::string_view kUnsupportedOutput = "UNSUPPORTED_OUTPUT";  // the model does not have this output
inline constexpr std::string_view kBadParameter = "BAD_PARAMETER";  // a bad parameter of an open inference request
inline constexpr std::string_view kModelNotFound = "MODEL_NOT_FOUND";
inline constexpr std::string_view kVersionNotFound = "VERSION_NOT_FOUND";
inline constexpr std::string_view kModelLoading = "MODEL_LOADING";
inline constexpr std::string_view kModelFailed = "MODEL_FAILED";  // a broken folder, or no version to serve
inline constexpr std::string_view kBadModel = "BAD_MODEL";        // problems in the files of a model or plan
inline constexpr std::string_view kDraining = "DRAINING";
inline constexpr std::string_view kQueueFull = "QUEUE_FULL";
inline constexpr std::string_view kMalformed = "MALFORMED_MESSAGE";  // the bytes are no message, or exceed limits
inline constexpr std::string_view kClientLimit = "CLIENT_LIMIT";     // one client uses more than its share
inline constexpr std::string_view kGaveWay = "GAVE_WAY";  // idle at a limit of the server, and another needed the place
inline constexpr std::string_view kStreamIdle = "STREAM_IDLE";  // a stream without a config, or without messages
inline constexpr std::string_view kRequestIncomplete = "REQUEST_INCOMPLETE";  // the request of a call did not arrive
inline constexpr std::string_view kAnswerUnread = "ANSWER_UNREAD";            // the client did not read its answer
inline constexpr std::string_view kDeadlineExpired = "DEADLINE_EXPIRED";
inline constexpr std::string_view kDeadlineUnmeetable = "DEADLINE_UNMEETABLE";  // the deadline would be missed
inline constexpr std::string_view kBadPriority = "BAD_PRIORITY";                // not one of the model's levels
inline constexpr std::string_view kMissingToken = "MISSING_TOKEN";  // no header "authorization: Bearer TOKEN"
inline constexpr std::string_view kUnknownToken = "UNKNOWN_TOKEN";
inline constexpr std::string_view kScopeTooSmall = "SCOPE_TOO_SMALL";      // the token may not do this
inline constexpr std::string_view kPriorityTooHigh = "PRIORITY_TOO_HIGH";  // the token does not allow this priority
inline constexpr std::string_view kShareReduced = "SHARE_REDUCED";         // of the token, since the call began
inline constexpr std::string_view kCertificateRefused = "CERTIFICATE_REFUSED";  // the client's, since it connected
inline constexpr std::string_view kCancelled = "CANCELLED";
inline constexpr std::string_view kOutOfMemory = "OUT_OF_MEMORY";
inline constexpr std::string_view kDeviceFailed = "DEVICE_FAILED";  // the GPU will not work again
inline constexpr std::string_view kResponseTooLarge = "RESPONSE_TOO_LARGE";
inline constexpr std::string_view kAlreadyTuning = "ALREADY_TUNING";
inline constexpr std::string_view kInternal = "INTERNAL";
}  // namespace error_reason

// Returns the status with the reason attached. A status that is OK or has a reason already is returned unchanged.
absl::Status WithReason(absl::Status status, std::string_view reason);

// Returns the attached reason; "" if there is none.
std::string ReasonOf(const absl::Status& status);

// Returns the status with a delay attached, after which a retry is worth while (google.rpc.RetryInfo). A status that is
// OK is returned unchanged.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);

// Returns RESOURCE_EXHAUSTED (QUEUE_FULL): a queue, or another limit of the server, has no room for the request now.
// The retry delay is 100 ms.
absl::Status QueueFullError(std::string_view message);
// Returns UNAVAILABLE (DRAINING): the server is shutting down.
absl::Status DrainingError();
// Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY): the host or the GPU has no memory for the work. There is no retry delay.
absl::Status OutOfMemoryError(std::string_view message);
// Does the same with the message "the server has no memory for this call". Only the first call allocates.
absl::Status OutOfMemoryError();
// Returns true for a status with the reason OUT_OF_MEMORY.
bool IsOutOfMemory(const absl::Status& status);
// Returns RESOURCE_EXHAUSTED (CLIENT_LIMIT): one client uses more than its share. The retry delay is 100 ms.
absl::Status ClientLimitError(std::string_view message);

// Returns RESOURCE_EXHAUSTED (GAVE_WAY): the call was idle, and its place went to another client. The retry delay is
// 100 ms.
absl::Status GaveWayError(std::string_view message);

// Returns the attached retry delay; absl::InfiniteDuration() if there is none.
absl::Duration RetryDelayOf(const absl::Status& status);

}  // namespace voxserve
