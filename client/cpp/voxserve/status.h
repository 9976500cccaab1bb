#pragma once

// Status and Result<T> are what calls of the client return; none of them throws an exception of its own.
//
//   voxserve::Result<voxserve::Segmentation> result = client.Infer(options, std::move(cloud));
//   if (!result.ok()) std::cerr << result.status().ToString() << "\n";
//   else Use(result->labels());
//
// Programs decide by code() and reason(), people read message(). Reasons of the client itself are NO_SERVER,
// TLS_FAILED, CONNECTION_LOST, MESSAGE_TOO_LARGE, CLIENT_TIMEOUT, MALFORMED_RESPONSE, UNSUPPORTED_OUTPUT, SUPERSEDED,
// TOO_MANY_UNSENT, STREAM_ENDED and DUPLICATE_FRAME; the server's documentation lists the server's.

#include <voxserve/export.h>

#include <chrono>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace voxserve::detail {
struct StatusData;
}

namespace voxserve {
inline namespace abi0 {

// The codes of gRPC, with its numbers.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// Returns the code's name, such as "NOT_FOUND"; "UNKNOWN" for a number that has none.
VOXSERVE_API std::string_view ToString(StatusCode code) noexcept;

// Immutable; copies are cheap.
class [[nodiscard]] VOXSERVE_API Status {
 public:
  Status() noexcept = default;  // OK
  // With the code kOk this is the status OK, which has neither message nor reason.
  Status(StatusCode code, std::string_view message, std::string_view reason = {});
  explicit Status(std::shared_ptr<const detail::StatusData> data) noexcept;  // private to the library

  bool ok() const noexcept { return data_ == nullptr; }
  StatusCode code() const noexcept;
  std::string_view message() const noexcept;
  std::string_view reason() const noexcept;  // "QUEUE_FULL", "NO_SERVER", ...; "" if there is none
  bool is_from_server() const noexcept;      // the reason is the server's, not the client's
  // The delay that the server asks for before the call is made again.
  std::optional<std::chrono::nanoseconds> retry_delay() const;
  std::string ToString() const;  // "NOT_FOUND: no model \"x\" (MODEL_NOT_FOUND)"

 private:
  std::shared_ptr<const detail::StatusData> data_;  // null: OK
};

VOXSERVE_API std::ostream& operator<<(std::ostream& out, const Status& status);

// Prints the status and ends the process: a program used the value of a Result that has none.
[[noreturn]] VOXSERVE_API void AbortWithoutValue(const Status& status) noexcept;

// A value, or the status that says why there is none. Using the value where there is none ends the process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : state_(std::in_place_index<0>, std::move(status)) {  // NOLINT: it converts
    if (std::get<0>(state_).ok()) {
      state_.template emplace<0>(StatusCode::kInternal, "a result without a value has the status OK");
    }
  }
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}  // NOLINT: it converts

  bool ok() const noexcept { return state_.index() == 1; }
  Status status() const { return ok() ? Status() : std::get<0>(state_); }

  const T& value() const& {
    Check();
    return *std::get_if<1>(&state_);
  }
  T& value() & {
    Check();
    return *std::get_if<1>(&state_);
  }
  T&& value() && {
    Check();
    return std::move(*std::get_if<1>(&state_));
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  void Check() const {
    if (!ok()) AbortWithoutValue(std::get<0>(state_));
  }

  std::variant<Status, T> state_;
};

}  // namespace abi0
}  // namespace voxserve
