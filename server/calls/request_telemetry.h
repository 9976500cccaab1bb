#pragma once

// RequestTelemetry records the decoding, the answer or the error of one request: in its answer (the times of stages),
// in the metrics and in the log. Each UnaryRequest has one, and each frame of an InferStream.
//
// Threads: not thread-safe; several threads may use it one after another.

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/host_buffer.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/point_cloud.h"
#include "open_inference.pb.h"
#include "server/calls/byte_limits.h"
#include "server/calls/call_environment.h"
#include "server/calls/trace_context.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

class RequestTelemetry {
 public:
  // Names the request. Model, version and request_id are the client's own; for a frame, request_id is its frame_id.
  struct Names {
    std::string model;
    int64_t version = 0;
    std::string request_id;
    std::string peer;
    std::string client;  // the client whose share the answer takes
    TraceContext trace = {};
  };

  // Records the current time as the request's arrival. `parts` must outlive the telemetry.
  RequestTelemetry(Names names, const CallEnvironment& parts) : names_(std::move(names)), parts_(&parts) {}

  // Makes the cloud with DecodeCloud, and records the time that this takes. Returns the errors of StampOf and
  // DecodeCloud (server/codec/codec.h).
  absl::StatusOr<PointCloud> Decode(v1::PointCloud* message, HostBuffer data);

  // Fills the response, except for request_id, and records the answer. The result holds the response's bytes; the
  // caller keeps it until the answer has been sent. RESOURCE_EXHAUSTED: RESPONSE_TOO_LARGE if the response is larger
  // than CallEnvironment::max_message_bytes, or an error of ByteLimits::Hold. Such an error is recorded already, as by
  // Fail.
  absl::StatusOr<HeldBytes> Answer(InferResult result, v1::InferResponse* response);
  // Does the same for the open inference protocol. outputs: the outputs to send, as for EncodeOpenInference. finish:
  // called with the encoded response, before the response's bytes are counted. An error of it is recorded and returned.
  absl::StatusOr<HeldBytes> Answer(InferResult result, const std::vector<std::string>& outputs,
                                   absl::FunctionRef<absl::Status(inference::ModelInferResponse* response)> finish,
                                   inference::ModelInferResponse* response);

  // Records the error that answers the request: in the metrics, and in the log, whose lines are limited.
  void Fail(const absl::Status& status) const;
  // Does the same for a request that was refused before it was queued, and also records the time that the refusal took
  // (Metrics::OnRefusal).
  void Refuse(const absl::Status& status) const;

  const std::string& model() const { return names_.model; }
  const std::string& request_id() const { return names_.request_id; }
  // The time at which the sensor took the cloud, set by Decode; InfinitePast: unknown.
  absl::Time stamp() const { return stamp_; }

 private:
  // Calls `encode`, which fills the response; then records the answer and holds its bytes. encode_time: gets the time
  // that this took.
  absl::StatusOr<HeldBytes> AnswerWith(InferResult result, absl::FunctionRef<absl::Status(InferResult& result)> encode,
                                       google::protobuf::Message* response, absl::Duration* encode_time);
  void LogFailure(const absl::Status& status) const;

  Names names_;
  const CallEnvironment* parts_;
  absl::Time started_ = SteadyNow();
  absl::Time stamp_ = absl::InfinitePast();
  absl::Duration decode_time_;
  uint64_t num_points_ = 0;
  std::string sensor_frame_;  // the cloud's frame_id
};

// Shortens a text that a client chose to 128 bytes and "...", for a log line or an error. Cuts no UTF-8 character.
std::string Clipped(absl::string_view text);

}  // namespace voxserve
