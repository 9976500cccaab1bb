#pragma once

// What a cloud's way through the server leaves in its answer, in the metrics and in the log: one for each Infer call,
// and for each frame of a stream. Used by one thread after the other.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "engine/serving/engine.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/point_cloud.h"
#include "server/metrics/metrics.h"
#include "server/services/call_limits.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// What bounds answers, and who is told of them. All outlive the requests.
struct AnswerOptions {
  int64_t max_message_bytes = int64_t{64} << 20;  // of an answer; a larger one becomes RESOURCE_EXHAUSTED
  CallLimits* limits = nullptr;
  Metrics* metrics = nullptr;
  LogLimiter* failure_log = nullptr;
};

class RequestTelemetry {
 public:
  // As the client named them; request_id may be a frame's number.
  struct Names {
    std::string model;
    int64_t version = 0;
    std::string request_id;
    std::string peer;
  };

  // The request has arrived now.
  RequestTelemetry(Names names, const AnswerOptions& options) : names_(std::move(names)), options_(options) {}

  // Takes the points out of the message, as DecodeCloud does. INVALID_ARGUMENT.
  absl::StatusOr<PointCloud> Decode(v1::PointCloud* message);

  // Fills the response, but for request_id, and holds its bytes, whose number it returns: the caller releases them when
  // the answer has left. Where the response is too large, or too many bytes are held, it is as Fail, with that error.
  absl::StatusOr<int64_t> Answer(InferResult result, v1::InferResponse* response);

  // The request gets this error: counts and logs it.
  void Fail(const absl::Status& status) const;
  // Likewise, of one that was not let in: the time that this took counts as a refusal's.
  void Refuse(const absl::Status& status) const;

  const std::string& model() const { return names_.model; }
  absl::Time stamp() const { return stamp_; }  // the sensor's, once decoded; InfinitePast: unknown

 private:
  void LogFailure(const absl::Status& status) const;

  Names names_;
  AnswerOptions options_;
  absl::Time started_ = absl::Now();
  absl::Time stamp_ = absl::InfinitePast();
  absl::Duration decode_time_;
  uint64_t num_points_ = 0;
  std::string sensor_frame_;  // the cloud's frame_id
};

// When gRPC gives a call up.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

// What a client chose may be long; a log line need not be.
std::string Clipped(absl::string_view text);

}  // namespace voxserve
