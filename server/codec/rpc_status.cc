#include "server/codec/rpc_status.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/cut_text.h"
#include "engine/base/error_reason.h"
#include "google/rpc/error_details.pb.h"

namespace voxserve {
namespace {

// gRPC sends a non-ASCII byte of the message as three bytes (%XX), and the details repeat the message in base64. 1,500
// bytes of message thus take less than 8 KiB, gRPC's default limit on metadata.
constexpr size_t kMaxMessageBytes = 1500;

std::string Shortened(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) return std::string(message);
  const absl::string_view beginning = CutAtCharacter(message, kMaxMessageBytes);
  return absl::StrCat(beginning, "... (", message.size() - beginning.size(), " bytes more)");
}

}  // namespace

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(Shortened(status.message()));
  google::rpc::ErrorInfo info;
  const std::string reason = ReasonOf(status);
  info.set_reason(reason.empty() ? absl::StatusCodeToString(status.code()) : reason);
  info.set_domain(std::string(kErrorDomain));
  details.add_details()->PackFrom(info);

  const absl::Duration delay = RetryDelayOf(status);
  if (delay != absl::InfiniteDuration()) {
    const int64_t nanos = absl::ToInt64Nanoseconds(std::max(delay, absl::ZeroDuration()));
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(nanos / 1'000'000'000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
    details.add_details()->PackFrom(retry);
  }
  return details;
}

}  // namespace voxserve
