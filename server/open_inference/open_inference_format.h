#pragma once

// OpenInferenceFormat reads a ModelInferRequest and writes its response: for ModelInfer, and for each request of
// ModelStreamInfer.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "open_inference.pb.h"
#include "server/calls/infer_run.h"
#include "server/calls/shared_memory.h"
#include "server/codec/message_parser.h"
#include "server/codec/open_inference.h"

namespace voxserve {

class OpenInferenceFormat final : public InferFormat {
 public:
  // is_streamed: the answer is a ModelStreamInferResponse.
  explicit OpenInferenceFormat(bool is_streamed = false) : is_streamed_(is_streamed) {}

  absl::Status Parse(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* request,
                     HostBuffer* data) override;
  absl::Status Complete(const Engine& engine, v1::InferRequest* request) override;
  absl::Status Fetch(const ServiceParts& parts, const std::string& client, CloudAllocator allocate,
                     HostBuffer* data) override;
  int64_t HeldSpace() const override { return static_cast<int64_t>(message_.SpaceUsedLong()); }
  absl::Duration timeout() const override { return parameters_->timeout; }
  absl::StatusOr<InferAnswer> Encode(InferResult result, RequestTelemetry* telemetry) override;

 private:
  // Moves the values of outputs that the request wants in shared memory.
  absl::Status MoveOutputs(inference::ModelInferResponse* response) const;

  const bool is_streamed_;
  inference::ModelInferRequest message_;  // without its values
  TensorParts parts_;
  int64_t num_bytes_ = 0;  // of the values
  std::optional<SharedMemoryUse> shared_input_;
  std::map<std::string, SharedMemoryPart> shared_outputs_;  // by the output's name
  absl::StatusOr<OpenInferenceParameters> parameters_ = OpenInferenceParameters();
};

}  // namespace voxserve
