#include "tests/client/fake_errors.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/support/await_true.h"

namespace voxserve::client {

grpc::Status Error(grpc::StatusCode code, const std::string& message, const std::string& reason,
                   int retry_milliseconds) {
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("voxserve");
  details.add_details()->PackFrom(info);
  if (retry_milliseconds > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_nanos(retry_milliseconds * 1'000'000);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(code, message, details.SerializeAsString());
}

grpc::Status ModelNotFound(const std::string& model) {
  return Error(grpc::StatusCode::NOT_FOUND, "no model '" + model + "'; there is segmenter", "MODEL_NOT_FOUND");
}

grpc::Status AwaitCancellation(grpc::ServerContext* context) {
  if (support::AwaitTrue([context] { return context->IsCancelled(); })) return grpc::Status::CANCELLED;
  return grpc::Status(grpc::StatusCode::INTERNAL, "the test's client neither cancelled nor gave up in time");
}

}  // namespace voxserve::client
