#include "server/services/services.h"

#include <algorithm>
#include <string>

#include "engine/base/steady_time.h"
#include "server/open_inference/open_inference_service.h"

namespace voxserve {

namespace {

int NumDevices(const Engine& engine) {
  const std::string names = engine.devices();  // "cuda:0,cuda:1"
  return 1 + static_cast<int>(std::count(names.begin(), names.end(), ','));
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
