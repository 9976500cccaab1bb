#include "server/codec/grpc_status.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"

namespace voxserve {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status details = ToRpcStatus(status);
  // absl::StatusCode has the same numbers as gRPC's codes.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(), details.SerializeAsString());
}

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context) {
  const absl::Duration delay = RetryDelayOf(status);
  if (!status.ok() && delay != absl::InfiniteDuration()) {
    const int64_t milliseconds = absl::ToInt64Milliseconds(std::max(delay, absl::ZeroDuration()));
    context->AddTrailingMetadata(kRetryPushbackTrailer, absl::StrCat(milliseconds));
  }
  return ToGrpcStatus(status);
}

}  // namespace voxserve
