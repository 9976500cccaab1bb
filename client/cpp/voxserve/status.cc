#include <voxserve/status.h>

#include <cstdio>
#include <cstdlib>

#include "client/cpp/voxserve/data.h"

namespace voxserve {
inline namespace abi0 {

std::string_view ToString(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

Status::Status(StatusCode code, std::string_view message, std::string_view reason) {
  if (code == StatusCode::kOk) return;
  data_ = std::make_shared<const detail::StatusData>(
      detail::StatusData{.code = code, .message = std::string(message), .reason = std::string(reason)});
}

Status::Status(std::shared_ptr<const detail::StatusData> data) noexcept : data_(std::move(data)) {}

StatusCode Status::code() const noexcept { return ok() ? StatusCode::kOk : data_->code; }
std::string_view Status::message() const noexcept { return ok() ? std::string_view() : data_->message; }
std::string_view Status::reason() const noexcept { return ok() ? std::string_view() : data_->reason; }
bool Status::is_from_server() const noexcept { return !ok() && data_->is_from_server; }

std::optional<std::chrono::nanoseconds> Status::retry_delay() const {
  return ok() ? std::optional<std::chrono::nanoseconds>() : data_->retry_delay;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  std::string text(abi0::ToString(code()));
  text.append(": ").append(message());
  if (!reason().empty()) text.append(" (").append(reason()).append(")");
  return text;
}

std::ostream& operator<<(std::ostream& out, const Status& status) { return out << status.ToString(); }

void AbortWithoutValue(const Status& status) noexcept {
  std::fprintf(stderr, "voxserve: the value of a Result without one was used: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace abi0
}  // namespace voxserve
