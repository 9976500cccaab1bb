#pragma once

// HealthService implements grpc.health.v1.Health: Check and Watch. gRPC's own implementation is a registered method,
// whose calls are invisible until their request has arrived (see call.h).
//
// - Threads: thread-safe. Watches get every status that lasts, in order; a slow one may miss statuses between.
// - A draining server answers them to the end.
// - Everybody may ask, with a token or without. A model's health is told to those who may see the model; to others it
//   is as unknown as that of a model that does not exist.

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.pb.h"
#include "server/calls/rpc_router.h"
#include "server/calls/service_parts.h"
#include "server/identity/authoriser.h"

namespace voxserve {

class HealthService {
 public:
  // parts outlive the service; the service outlives its calls and the router's.
  explicit HealthService(const ServiceParts* parts) : parts_(parts) {}

  void AddTo(RpcRouter* router);

  // name: a service's name in clients' requests; "": the whole server.
  void SetServing(const std::string& name, bool serving) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetModelServing(const std::string& model, bool serving);
  // Returns false for a name that was never set.
  bool IsServing(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class CheckCall;
  class WatchCall;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // Returns SERVICE_UNKNOWN for a name that was never set, and for models that the caller may not see.
  Status StatusOf(const Caller& caller, const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Watch(const std::shared_ptr<WatchCall>& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Unwatch(const std::shared_ptr<WatchCall>& call) ABSL_LOCKS_EXCLUDED(mutex_);

  const ServiceParts* const parts_;
  mutable absl::Mutex mutex_;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<WatchCall>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
