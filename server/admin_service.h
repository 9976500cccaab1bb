#pragma once

// voxserve.v1.AdminService over the engine, with gRPC's callback API: nobody waits in a callback.
//
// TunePlan makes a reactor that owns its call: it starts the engine's search and writes what the engine's threads tell.
// One message is on its way at a time; while it is, progress replaces the progress that waits, so that a client that
// does not read costs nothing. A call ends at once, and its search with it, when the client cancels or the server
// drains.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/serving/engine.h"
#include "voxserve/v1/admin.grpc.pb.h"

namespace voxserve {

class AdminService final : public v1::AdminService::CallbackService {
 public:
  // engine outlives the service; the service outlives the gRPC server.
  explicit AdminService(Engine* engine) : engine_(engine) {}

  grpc::ServerWriteReactor<v1::TunePlanUpdate>* TunePlan(grpc::CallbackServerContext* context,
                                                         const v1::TunePlanRequest* request) override;

  // From now on calls answer UNAVAILABLE, reason DRAINING; those under way too.
  void StartDraining();

 private:
  class TunePlanCall;

  // Keeps the call until Release. False where the server drains.
  bool Hold(std::shared_ptr<TunePlanCall> call);
  void Release(const std::shared_ptr<TunePlanCall>& call);

  Engine* const engine_;

  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<TunePlanCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
