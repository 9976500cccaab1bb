#pragma once

// OpenInferenceFormat is the InferFormat of the open inference protocol: it reads a ModelInferRequest and writes its
// response, for ModelInfer and for each request of ModelStreamInfer. A UnaryRequest owns one for each request, and
// calls its functions one at a time (server/calls/unary_request.h). server/codec/open_inference.h describes inputs,
// outputs and errors.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "open_inference.pb.h"
#include "server/calls/shared_memory.h"
#include "server/calls/unary_request.h"
#include "server/codec/message_parser.h"
#include "server/codec/open_inference.h"

namespace voxserve {

class OpenInferenceFormat final : public InferFormat {
 public:
  // is_streamed: true for ModelStreamInfer, whose answers are ModelStreamInferResponses.
  explicit OpenInferenceFormat(bool is_streamed = false) : is_streamed_(is_streamed) {}

  absl::Status Parse(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* request,
                     HostBuffer* data) override;
  absl::Status Complete(const Engine& engine, v1::InferRequest* request) override;
  absl::Status Fetch(const CallEnvironment& environment, const std::string& client, CloudAllocator allocate,
                     HostBuffer* data) override;
  int64_t HeldSpace() const override { return static_cast<int64_t>(message_.SpaceUsedLong()); }
  absl::Duration timeout() const override { return parameters_->timeout; }
  absl::StatusOr<EncodedAnswer> Encode(InferResult* result, RequestCodec* codec) override;

 private:
  // Moves the values of the outputs in shared_outputs_ from the response to their places in shared memory.
  absl::Status MoveOutputs(inference::ModelInferResponse* response) const;

  const bool is_streamed_;
  inference::ModelInferRequest message_;  // without the values of the points
  TensorParts parts_;
  int64_t num_bytes_ = 0;  // the size of the values of the points
  std::optional<SharedMemoryUse> shared_input_;
  std::map<std::string, SharedMemoryPart> shared_outputs_;  // outputs that go to shared memory, by the output's name
  absl::StatusOr<OpenInferenceParameters> parameters_ = OpenInferenceParameters();
};

}  // namespace voxserve
