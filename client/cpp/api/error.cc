#include "client/cpp/api/error.h"

#include <grpcpp/support/status.h>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace voxserve::client {
namespace {

constexpr char kDomain[] = "voxserve.client";  // the domain of this client's reasons; the server's is "voxserve"

template <typename Message>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Message().GetTypeName());
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

bool IsFromServer(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return ReadPayload(status, &info) && info.domain() != kDomain;
}

absl::Duration RetryDelay(const absl::Status& status) {
  google::rpc::RetryInfo info;
  if (!ReadPayload(status, &info)) return absl::InfiniteDuration();
  return absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
}

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kDomain);
  status.SetPayload(TypeUrl<google::rpc::ErrorInfo>(), absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status FromRpcStatus(const google::rpc::Status& status) {
  absl::Status converted(static_cast<absl::StatusCode>(status.code()), status.message());
  for (const auto& detail : status.details()) converted.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  return converted;
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  google::rpc::Status details;
  if (status.ok() || !details.ParseFromString(status.error_details())) details.Clear();
  details.set_code(status.error_code());
  details.set_message(status.error_message());
  return FromRpcStatus(details);
}

}  // namespace voxserve::client
