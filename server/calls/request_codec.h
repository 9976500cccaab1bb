#pragma once

// RequestCodec makes the cloud of one request from its message and the response from its result, within the server's
// limits. It measures the time that both take: the server's own stages, decode and encode. Each UnaryRequest has one,
// and each frame of an InferStream.
//
// Threads: not thread-safe; several threads may use it one after another.

#include <google/protobuf/message.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/runtime/host_buffer.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/point_cloud.h"
#include "server/calls/byte_limits.h"
#include "server/calls/call_environment.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

class RequestCodec {
 public:
  // client: the client whose share the answer takes. `environment` must outlive the codec.
  RequestCodec(const CallEnvironment* environment, std::string client)
      : environment_(environment), client_(std::move(client)) {}

  // Makes the cloud. Returns the errors of StampOf and DecodeCloud (server/codec/codec.h).
  absl::StatusOr<PointCloud> Decode(v1::PointCloud* message, HostBuffer data);

  // Fills the response, except for request_id, and holds its bytes until the caller has sent it. Moves the largest
  // values out of the result (EncodeResult). Returns the errors of Hold.
  absl::StatusOr<HeldBytes> Encode(InferResult* result, v1::InferResponse* response);
  // Holds the bytes of a response that the caller has encoded since `encode_start`. RESOURCE_EXHAUSTED:
  // RESPONSE_TOO_LARGE if the response is larger than CallEnvironment::max_message_bytes, or an error of
  // ByteLimits::Hold.
  absl::StatusOr<HeldBytes> Hold(const google::protobuf::Message& response, absl::Time encode_start);

  absl::Duration decode_time() const { return decode_time_; }
  absl::Duration encode_time() const { return encode_time_; }

 private:
  const CallEnvironment* environment_;
  std::string client_;
  absl::Duration decode_time_;
  absl::Duration encode_time_;
};

}  // namespace voxserve
