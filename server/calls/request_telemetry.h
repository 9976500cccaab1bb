#pragma once

// RequestTelemetry records one request's events in its answer, the metrics and the log. Each InferRun has one, and
// each frame of a stream.
//
// - Threads: not thread-safe; threads may use it one after another.

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
#include "server/calls/service_parts.h"
#include "server/calls/trace_context.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

class RequestTelemetry {
 public:
  // The request's names as the client gave them; request_id may be a frame's number.
  struct Names {
    std::string model;
    int64_t version = 0;
    std::string request_id;
    std::string peer;
    std::string client;  // the client whose share the answer takes
    TraceContext trace = {};
  };

  // The constructor takes the current time as the request's arrival.
  RequestTelemetry(Names names, const ServiceParts& parts) : names_(std::move(names)), parts_(&parts) {}

  // Calls DecodeCloud and measures its time. INVALID_ARGUMENT, for the cloud's stamp too.
  absl::StatusOr<PointCloud> Decode(v1::PointCloud* message, HostBuffer data);

  // Fills the response except request_id, and holds its bytes; the caller gives them back when the answer is sent.
  // Returns an error if the response is too large, or too many bytes are held.
  absl::StatusOr<HeldBytes> Answer(InferResult result, v1::InferResponse* response);
  // Does the same for the open inference protocol. outputs: the names to answer with, as EncodeOpenInference takes
  // them. finish: is called with the encoded response, before its bytes are counted; its error becomes the request's.
  absl::StatusOr<HeldBytes> Answer(InferResult result, const std::vector<std::string>& outputs,
                                   absl::FunctionRef<absl::Status(inference::ModelInferResponse* response)> finish,
                                   inference::ModelInferResponse* response);

  // Counts and logs the error that the request is answered with.
  void Fail(const absl::Status& status) const;
  // Does the same for a request that was refused before it was queued, and also counts its time as a refusal's.
  void Refuse(const absl::Status& status) const;

  const std::string& model() const { return names_.model; }
  const std::string& request_id() const { return names_.request_id; }
  absl::Time stamp() const { return stamp_; }  // the sensor's, set by Decode; InfinitePast: unknown

 private:
  // Has the response encoded, counts it, and holds its bytes. encode_time: gets the time that it took.
  absl::StatusOr<HeldBytes> AnswerWith(InferResult result, absl::FunctionRef<absl::Status(InferResult& result)> encode,
                                       google::protobuf::Message* response, absl::Duration* encode_time);
  void LogFailure(const absl::Status& status) const;

  Names names_;
  const ServiceParts* parts_;
  absl::Time started_ = SteadyNow();
  absl::Time stamp_ = absl::InfinitePast();
  absl::Duration decode_time_;
  uint64_t num_points_ = 0;
  std::string sensor_frame_;  // the cloud's frame_id
};

// Shortens text that a client chose, for a log line or an error. No character is cut.
std::string Clipped(absl::string_view text);

}  // namespace voxserve
