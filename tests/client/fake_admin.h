#pragma once

// FakeAdmin implements the AdminService of FakeServer. fake_server.h lists how it answers for each model. gRPC's
// threads call it at the same time.

#include <grpcpp/grpcpp.h>

#include <mutex>

#include "voxserve/v1/admin.grpc.pb.h"

namespace voxserve::client {

class FakeAdmin final : public v1::AdminService::Service {
 public:
  grpc::Status TunePlan(grpc::ServerContext* context, const v1::TunePlanRequest* request,
                        grpc::ServerWriter<v1::TunePlanUpdate>* writer) override;
  grpc::Status LoadModel(grpc::ServerContext* context, const v1::LoadModelRequest* request,
                         v1::LoadModelResponse* response) override;
  grpc::Status UnloadModel(grpc::ServerContext* context, const v1::UnloadModelRequest* request,
                           v1::UnloadModelResponse* response) override;

  // Returns the request of the last TunePlan.
  v1::TunePlanRequest last_request() const;

 private:
  mutable std::mutex mutex_;
  v1::TunePlanRequest last_request_;
};

}  // namespace voxserve::client
