#pragma once

// ServiceClient is a client of InferenceService and of gRPC's health service, for tests. It has the generated stubs on
// a connection of its own. The header also has functions that read the details of errors.

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
  // Calls Check of the health service. Returns UNKNOWN if the call fails.
  grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& service = "");

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

// Returns a request with num_points points of x, y, z and intensity as float32, spread over 40 m.
v1::InferRequest RequestOf(const std::string& model, int64_t num_points);

// Returns the reason in the status's google.rpc.ErrorInfo, or "" if it has none of voxserve's domain.
std::string ReasonOf(const grpc::Status& status);
// Returns the delay in the status's google.rpc.RetryInfo, or infinity if it has none.
absl::Duration RetryDelayOf(const grpc::Status& status);

}  // namespace voxserve
