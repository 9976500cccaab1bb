#include "server/services/services.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "engine/base/steady_time.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "open_inference.pb.h"
#include "server/open_inference/open_inference_service.h"
#include "voxserve/v1/admin.pb.h"
#include "voxserve/v1/inference.pb.h"
#include "voxserve/v1/point_cloud.pb.h"
#include "xds/data/orca/v3/orca_load_report.pb.h"

namespace voxserve {

namespace {

int NumDevices(const Engine& engine) {
  const std::string names = engine.devices();  // "cuda:0,cuda:1"
  return 1 + static_cast<int>(std::count(names.begin(), names.end(), ','));
}

// Has protobuf make the descriptors of all messages, which it otherwise makes at the first use of a message. If memory
// is short then, protobuf 3.21 is left with half of them, and the next use ends the process.
void MakeDescriptors() {
  const std::initializer_list<const google::protobuf::Message*> messages = {
      &v1::PointCloud::default_instance(),
      &v1::InferRequest::default_instance(),
      &v1::LoadModelRequest::default_instance(),
      &inference::ModelInferRequest::default_instance(),
      &grpc::health::v1::HealthCheckRequest::default_instance(),
      &grpc::reflection::v1alpha::ServerReflectionRequest::default_instance(),
      &google::rpc::ErrorInfo::default_instance(),
      &google::rpc::Status::default_instance(),
      &xds::data::orca::v3::OrcaLoadReport::default_instance()};
  for (const google::protobuf::Message* message : messages) message->GetReflection();
}

}  // namespace

Services::Services(const Options& options, Engine* engine, Metrics* metrics, ConnectionObserver* connections)
    : calls_(options.calls),
      bytes_(options.bytes),
      shared_memory_(options.shared_memory_prefix),
      environment_({.engine = engine,
                    .metrics = metrics,
                    .connections = connections,
                    .calls = &calls_,
                    .bytes = &bytes_,
                    .timers = &timers_,
                    .shared_memory = &shared_memory_,
                    .client_connections = shared_memory_.is_on() ? &client_connections_ : nullptr,
                    .log_limiter = &log_limiter_,
                    .num_devices = NumDevices(*engine),
                    .is_ready = [this] { return health_.IsServing(""); },
                    .version = options.version,
                    .authoriser = options.authoriser,
                    .client_certificates = options.client_certificates,
                    .max_message_bytes = options.max_message_bytes,
                    .times = options.times}),
      health_(&environment_),
      router_(&environment_),
      admin_router_(&environment_) {
  MakeDescriptors();
  AddInferenceService(&environment_, &router_);
  AddLoadReportService(&environment_, &router_);
  AddAdminService(&environment_, &admin_router_);
  AddOpenInferenceService(&environment_, &router_);
  AddOpenInferenceAdmin(&environment_, &admin_router_);
  router_.AddElsewhere(kAdminServiceName,
                       "it has one of its own, --admin_port of the server, admin_address of clients");
  for (RpcRouter* router : {&router_, &admin_router_}) {
    AddReflectionService(&environment_, router);
    health_.AddTo(router);
  }
}

void Services::OnConnectionGone(const std::string& peer) {
  const absl::Duration grace = environment_.times.silence;
  const absl::Time now = SteadyNow();
  for (const std::string& client : client_connections_.OnGone(peer, now)) {
    timers_.Set(now + grace, [this, client, grace] {
      if (client_connections_.ForgetGone(client, SteadyNow() - grace)) shared_memory_.Unregister(client, "");
    });
  }
}

Services::Held Services::held() const {
  return {.calls = calls_.num_requests(),
          .streams = calls_.num_streams(),
          .unsent_bytes = bytes_.held(ByteKind::kAnswer),
          .frame_bytes = bytes_.held(ByteKind::kFrame),
          .sweep_bytes = bytes_.held(ByteKind::kSweep)};
}

}  // namespace voxserve
