#include "tests/integration/service_client.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace voxserve {
namespace {

std::shared_ptr<grpc::Channel> Connect(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Without this, channels of one process to the same port share a connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments);
}

template <typename Detail>
bool FindDetail(const grpc::Status& status, Detail* detail) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return false;
  for (const auto& any : details.details()) {
    if (any.UnpackTo(detail)) return true;
  }
  return false;
}

}  // namespace

ServiceClient::ServiceClient(int port)
    : channel(Connect(port)),
      inference(v1::InferenceService::NewStub(channel)),
      health(grpc::health::v1::Health::NewStub(channel)) {}

grpc::Status ServiceClient::Infer(const v1::InferRequest& request, v1::InferResponse* response,
                                  absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  return inference->Infer(&context, request, response);
}

grpc::health::v1::HealthCheckResponse::ServingStatus ServiceClient::Health(const std::string& service) {
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  if (!health->Check(&context, request, &response).ok()) return grpc::health::v1::HealthCheckResponse::UNKNOWN;
  return response.status();
}

v1::InferRequest RequestOf(const std::string& model, int64_t num_points) {
  std::vector<float> values;
  values.reserve(num_points * 4);
  for (int64_t i = 0; i < num_points; ++i) {
    values.push_back(static_cast<float>(i % 400) * 0.1f - 20);
    values.push_back(static_cast<float>(i / 400) * 0.1f - 20);
    values.push_back(static_cast<float>(i % 7) * 0.3f);
    values.push_back(static_cast<float>(i % 100) * 0.01f);
  }
  v1::InferRequest request;
  request.set_model(model);
  v1::PointCloud& cloud = *request.mutable_cloud();
  cloud.set_num_points(num_points);
  cloud.set_point_step(16);
  uint32_t offset = 0;
  for (const char* name : {"x", "y", "z", "intensity"}) {
    v1::PointField& field = *cloud.add_fields();
    field.set_name(name);
    field.set_offset(offset);
    field.set_type(v1::POINT_FIELD_TYPE_FLOAT32);
    offset += 4;
  }
  cloud.set_data(values.data(), values.size() * sizeof(float));
  return request;
}

std::string ReasonOf(const grpc::Status& status) {
  google::rpc::ErrorInfo info;
  return FindDetail(status, &info) && info.domain() == "voxserve" ? info.reason() : "";
}

absl::Duration RetryDelayOf(const grpc::Status& status) {
  google::rpc::RetryInfo info;
  if (!FindDetail(status, &info)) return absl::InfiniteDuration();
  return absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
}

}  // namespace voxserve
