#pragma once

// A plain client of the service for tests: the generated stubs on a connection of their own, and what errors carry.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve {

struct ServiceClient {
  explicit ServiceClient(int port);

  grpc::Status Infer(const v1::InferRequest& request, v1::InferResponse* response,
                     absl::Duration timeout = absl::Seconds(30));
  // UNKNOWN where the call failed.
  grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& service = "");

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

// num_points of x, y, z, intensity as float32, of a scan that is 40 m wide.
v1::InferRequest RequestOf(const std::string& model, int64_t num_points);

// What google.rpc.ErrorInfo says; "" where there is none, or it is of another domain.
std::string ReasonOf(const grpc::Status& status);
// What google.rpc.RetryInfo says; infinite where there is none.
absl::Duration RetryDelayOf(const grpc::Status& status);

}  // namespace voxserve
