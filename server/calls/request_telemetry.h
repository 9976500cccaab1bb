#pragma once

// RequestTelemetry records the answer or the error of one request in the metrics and in the log. Each UnaryRequest has
// one, and each frame of an InferStream.
//
// Threads: not thread-safe; several threads may use it one after another.

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "engine/tensor/infer_result.h"
#include "server/calls/call_environment.h"
#include "server/calls/request_codec.h"
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
    TraceContext trace = {};
  };

  // Records the current time as the request's arrival. `environment` must outlive the telemetry.
  RequestTelemetry(Names names, const CallEnvironment& environment)
      : names_(std::move(names)), environment_(&environment) {}

  // Takes what the records say of the request's cloud.
  void SetCloud(const v1::PointCloud& cloud);

  // Records the answer. `codec` has encoded the result.
  void Record(const InferResult& result, const RequestCodec& codec) const;
  // Records the error that answers the request: in the metrics, and in the log, whose lines are limited.
  void Fail(const absl::Status& status) const;
  // Does the same for a request that was refused before it was queued, and also records the time that the refusal took
  // (Metrics::OnRefusal).
  void Refuse(const absl::Status& status) const;

  const std::string& request_id() const { return names_.request_id; }
  // The time at which the sensor took the cloud; InfinitePast: unknown.
  absl::Time stamp() const { return stamp_; }

 private:
  void LogFailure(const absl::Status& status) const;
  void LogWarning(const InferResult& result, const FeatureWarning& warning) const;

  Names names_;
  const CallEnvironment* environment_;
  absl::Time started_ = SteadyNow();
  absl::Time stamp_ = absl::InfinitePast();
  uint64_t num_points_ = 0;
  std::string sensor_frame_;  // the cloud's frame_id
};

// Shortens a text that a client chose to 128 bytes and "...", for a log line or an error. Cuts no UTF-8 character.
std::string Clipped(absl::string_view text);

}  // namespace voxserve
