#pragma once

// RequestTelemetry writes what happened to one request into its answer, the metrics and the log. Each Infer call has
// one, and each frame of a stream.
//
// - Threads: not thread-safe; one thread uses it after the other.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/runtime/host_buffer.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/point_cloud.h"
#include "server/services/byte_limits.h"
#include "server/services/service_parts.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

class RequestTelemetry {
 public:
  // As the client named them; request_id may be a frame's number.
  struct Names {
    std::string model;
    int64_t version = 0;
    std::string request_id;
    std::string peer;
    std::string client;  // whose share the answer takes
  };

  // The request has arrived now.
  RequestTelemetry(Names names, const ServiceParts& parts) : names_(std::move(names)), parts_(&parts) {}

  // DecodeCloud, with its time. INVALID_ARGUMENT, for the cloud's stamp too.
  absl::StatusOr<PointCloud> Decode(v1::PointCloud* message, HostBuffer data);

  // Fills the response, but for request_id, and holds its bytes; the caller gives them back when the answer has left.
  // Fails where the response is too large, or too many bytes are held, and returns that error.
  absl::StatusOr<HeldBytes> Answer(InferResult result, v1::InferResponse* response);

  // Counts and logs the error that the request gets.
  void Fail(const absl::Status& status) const;
  // Fails a request that was not let in: its time counts as a refusal's too.
  void Refuse(const absl::Status& status) const;

  const std::string& model() const { return names_.model; }
  absl::Time stamp() const { return stamp_; }  // the sensor's, once decoded; InfinitePast: unknown

 private:
  void LogFailure(const absl::Status& status) const;

  Names names_;
  const ServiceParts* parts_;
  absl::Time started_ = absl::Now();
  absl::Time stamp_ = absl::InfinitePast();
  absl::Duration decode_time_;
  uint64_t num_points_ = 0;
  std::string sensor_frame_;  // the cloud's frame_id
};

// Shortens text that a client chose, for a log line.
std::string Clipped(absl::string_view text);

}  // namespace voxserve
