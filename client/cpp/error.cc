#include "client/cpp/error.h"

#include <grpcpp/support/status.h>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace voxserve::client {
namespace {

template <typename Message>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Message::descriptor()->full_name());
}

template <typename Message>
bool ReadPayload(const absl::Status& status, Message* message) {
  const auto payload = status.GetPayload(TypeUrl<Message>());
  return payload && message->ParseFromString(std::string(*payload));
}

}  // namespace

std::string ErrorReason(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return ReadPayload(status, &info) ? info.reason() : std::string();
}

absl::Duration RetryDelay(const absl::Status& status) {
  google::rpc::RetryInfo info;
  if (!ReadPayload(status, &info)) return absl::InfiniteDuration();
  return absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
}

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("voxserve.client");
  status.SetPayload(TypeUrl<google::rpc::ErrorInfo>(), absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  absl::Status converted(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!converted.ok() && details.ParseFromString(status.error_details())) {
    for (const auto& detail : details.details()) converted.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return converted;
}

}  // namespace voxserve::client
