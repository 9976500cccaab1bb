#pragma once

// HealthService implements grpc.health.v1.Health: Check and Watch. It reports the health of the server, of its
// services, and of each model, as the service "voxserve.model.NAME". gRPC's own implementation is not used, since gRPC
// shows the calls of its registered methods only after their request has arrived (see call.h).
//
// - Watch: the call sends the status at once, and then each new status, in order. A client that reads slowly may miss
//   statuses, but gets the latest one.
// - Drain: a server that drains (shuts down) still answers both methods.
// - Access: everybody may ask about the server and its services, with a token or without. A caller that may not see a
//   model (Caller::SeesModel) gets the answer for a model that does not exist.
// - Threads: thread-safe. Nothing waits.

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.pb.h"
#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"
#include "server/identity/authoriser.h"

namespace voxserve {

class HealthService {
 public:
  // `environment` must outlive the service, and the service must outlive its calls and every router that AddTo gets.
  explicit HealthService(const CallEnvironment* environment) : environment_(environment) {}

  // Adds both methods to a router. Several routers may serve one HealthService.
  void AddTo(RpcRouter* router);

  // Sets the status of a service, and sends it to the calls that watch the service. name: the service's name in
  // clients' requests; "": the whole server.
  void SetServing(const std::string& name, bool serving) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetModelServing(const std::string& model, bool serving);
  // Returns false if the status of this name was never set.
  bool IsServing(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class CheckCall;
  class WatchCall;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // Returns SERVICE_UNKNOWN if the status of this name was never set, or if it is a model that the caller may not see.
  Status StatusOf(const Caller& caller, const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Watch(const std::shared_ptr<WatchCall>& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Unwatch(const std::shared_ptr<WatchCall>& call) ABSL_LOCKS_EXCLUDED(mutex_);

  const CallEnvironment* const environment_;
  mutable absl::Mutex mutex_;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<WatchCall>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
