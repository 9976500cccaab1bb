#include "engine/base/error_reason.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace voxserve {
namespace {

constexpr absl::string_view kReasonUrl = "voxserve/error_reason";
constexpr absl::string_view kRetryUrl = "voxserve/retry_delay_us";

absl::Status Exhausted(std::string_view message, std::string_view reason) {
  return WithReason(absl::ResourceExhaustedError(absl::string_view(message.data(), message.size())), reason);
}

absl::Status ExhaustedForNow(std::string_view message, std::string_view reason) {
  constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);
  return WithRetryDelay(Exhausted(message, reason), kRetryDelay);
}

}  // namespace

absl::Status WithReason(absl::Status status, std::string_view reason) {
  if (!status.ok() && !status.GetPayload(kReasonUrl)) status.SetPayload(kReasonUrl, absl::Cord(std::string(reason)));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonUrl);
  return payload ? std::string(*payload) : std::string();
}

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  if (!status.ok()) status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(absl::ToInt64Microseconds(delay))));
  return status;
}

absl::Status QueueFullError(std::string_view message) { return ExhaustedForNow(message, error_reason::kQueueFull); }

absl::Status DrainingError() {
  return WithReason(absl::UnavailableError("the server is shutting down; send the request to another server"),
                    error_reason::kDraining);
}

absl::Status OutOfMemoryError(std::string_view message) { return Exhausted(message, error_reason::kOutOfMemory); }

absl::Status OutOfMemoryError() {
  static const absl::Status& error = *new absl::Status(OutOfMemoryError("the server has no memory for this call"));
  return error;
}

bool IsOutOfMemory(const absl::Status& status) { return ReasonOf(status) == error_reason::kOutOfMemory; }

absl::Status GaveWayError(std::string_view message) { return ExhaustedForNow(message, error_reason::kGaveWay); }

absl::Status ClientLimitError(std::string_view message) { return ExhaustedForNow(message, error_reason::kClientLimit); }

absl::Duration RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryUrl);
  int64_t microseconds = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &microseconds)) return absl::InfiniteDuration();
  return absl::Microseconds(microseconds);
}

}  // namespace voxserve
