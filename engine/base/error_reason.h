#pragma once

// The stable, machine-readable reason of an error. Travels in the absl::Status as a payload; server/codec/grpc_status
// turns it into google.rpc.ErrorInfo.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace voxserve {

// UPPER_SNAKE_CASE; part of the API: never renamed.
namespace error_reason {
inline constexpr std::string_view kBadLayout = "BAD_LAYOUT";        // bytes, steps or fields do not fit
inline constexpr std::string_view kMissingField = "MISSING_FIELD";  // an axis or feature without default
inline constexpr std::string_view kTooManyPoints = "TOO_MANY_POINTS";
inline constexpr std::string_view kTooManyVoxels = "TOO_MANY_VOXELS";
inline constexpr std::string_view kCoordinateLimits = "COORDINATE_LIMITS";  // sites beyond what a key can hold
inline constexpr std::string_view kBadSweeps = "BAD_SWEEPS";                // a model that cannot run several together
inline constexpr std::string_view kBadSample = "BAD_SAMPLE";                // farthest points that there are not
inline constexpr std::string_view kBadPose = "BAD_POSE";
inline constexpr std::string_view kBadStamp = "BAD_STAMP";  // no time, or a sweep older than the one before
inline constexpr std::string_view kMissingCloud = "MISSING_CLOUD";
inline constexpr std::string_view kMissingStamp = "MISSING_STAMP";  // of a sweep
inline constexpr std::string_view kBadStream = "BAD_STREAM";        // its config, or messages out of their order
inline constexpr std::string_view kSuperseded = "SUPERSEDED";       // a newer frame of the stream came
inline constexpr std::string_view kUnsupportedOutput = "UNSUPPORTED_OUTPUT";  // scores of a model that has none
inline constexpr std::string_view kModelNotFound = "MODEL_NOT_FOUND";
inline constexpr std::string_view kVersionNotFound = "VERSION_NOT_FOUND";
inline constexpr std::string_view kModelLoading = "MODEL_LOADING";
inline constexpr std::string_view kModelFailed = "MODEL_FAILED";  // broken folder, nothing to serve
inline constexpr std::string_view kBadModel = "BAD_MODEL";        // what loading found
inline constexpr std::string_view kDraining = "DRAINING";
inline constexpr std::string_view kQueueFull = "QUEUE_FULL";
inline constexpr std::string_view kMalformed = "MALFORMED_MESSAGE";  // bytes that are no message, or beyond limits
inline constexpr std::string_view kClientLimit = "CLIENT_LIMIT";     // one client has more than its share
inline constexpr std::string_view kStreamIdle = "STREAM_IDLE";       // a stream without a config, or silent
inline constexpr std::string_view kRequestIncomplete = "REQUEST_INCOMPLETE";  // a call whose request did not come
inline constexpr std::string_view kAnswerUnread = "ANSWER_UNREAD";            // the client did not read its answer
inline constexpr std::string_view kDeadlineExpired = "DEADLINE_EXPIRED";
inline constexpr std::string_view kDeadlineUnmeetable = "DEADLINE_UNMEETABLE";  // it would not have been met
inline constexpr std::string_view kBadPriority = "BAD_PRIORITY";                // beyond the model's levels
inline constexpr std::string_view kCancelled = "CANCELLED";
inline constexpr std::string_view kOutOfMemory = "OUT_OF_MEMORY";
inline constexpr std::string_view kDeviceFailed = "DEVICE_FAILED";  // a GPU that will not work again
inline constexpr std::string_view kResponseTooLarge = "RESPONSE_TOO_LARGE";
inline constexpr std::string_view kAlreadyTuning = "ALREADY_TUNING";
inline constexpr std::string_view kInternal = "INTERNAL";
}  // namespace error_reason

// The status with the reason attached. A status that already has one, or is OK, is returned as it is.
absl::Status WithReason(absl::Status status, std::string_view reason);

// The attached reason; "" where there is none.
std::string ReasonOf(const absl::Status& status);

// For errors that are worth trying again: attaches when (google.rpc.RetryInfo).
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);

// RESOURCE_EXHAUSTED (QUEUE_FULL), with the time in which a queue moves on as its delay.
absl::Status QueueFullError(std::string_view message);
// UNAVAILABLE (DRAINING).
absl::Status DrainingError();
// RESOURCE_EXHAUSTED (OUT_OF_MEMORY).
absl::Status OutOfMemoryError(std::string_view message = "the server has no memory for this call");
// True for a status with that reason.
bool IsOutOfMemory(const absl::Status& status);
// RESOURCE_EXHAUSTED (CLIENT_LIMIT): one client has more than its share. The same delay.
absl::Status ClientLimitError(std::string_view message);

// The attached delay; absl::InfiniteDuration() where there is none.
absl::Duration RetryDelayOf(const absl::Status& status);

}  // namespace voxserve
