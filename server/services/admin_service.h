#pragma once

// voxserve.v1.AdminService over the engine, with gRPC's callback API: nobody waits in a callback.
//
// A load or unload whose client is gone goes on; its answer is dropped.

#include <grpcpp/grpcpp.h>

#include "engine/serving/engine.h"
#include "server/services/admin_calls.h"
#include "voxserve/v1/admin.grpc.pb.h"

namespace voxserve {

class AdminService final : public v1::AdminService::CallbackService {
 public:
  // engine outlives the service; the service outlives the gRPC server.
  explicit AdminService(Engine* engine) : engine_(engine) {}

  grpc::ServerWriteReactor<v1::TunePlanUpdate>* TunePlan(grpc::CallbackServerContext* context,
                                                         const v1::TunePlanRequest* request) override;
  grpc::ServerUnaryReactor* LoadModel(grpc::CallbackServerContext* context, const v1::LoadModelRequest* request,
                                      v1::LoadModelResponse* response) override;
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext* context, const v1::UnloadModelRequest* request,
                                        v1::UnloadModelResponse* response) override;

  // From now on calls are refused, and those under way end: reason DRAINING; UNAVAILABLE for TunePlan, CANCELLED for
  // the others.
  void StartDraining() { calls_.StartDraining(); }

 private:
  Engine* const engine_;
  AdminCalls calls_;
};

}  // namespace voxserve
