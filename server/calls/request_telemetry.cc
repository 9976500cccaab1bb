#include "server/calls/request_telemetry.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/cut_text.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/tensor/stage.h"
#include "server/codec/codec.h"
#include "server/codec/open_inference.h"

namespace voxserve {
namespace {

// An allowance for the bytes of a response that Answer does not measure: the stage kEncode, which Answer appends
// afterwards, and the FrameResult message around a frame's response.
constexpr int64_t kEnvelopeBytes = 64;

// Returns kDebug for ABORTED (a superseded frame of a stream), kInfo for errors that clients often cause, and kWarning
// for all others: the server's faults, overload, and missing permissions.
LogLevel LevelOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kAborted:
      return LogLevel::kDebug;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return LogLevel::kInfo;
    default:
      return LogLevel::kWarning;
  }
}

}  // namespace

absl::StatusOr<PointCloud> RequestTelemetry::Decode(v1::PointCloud* message, HostBuffer data) {
  const absl::Time start = SteadyNow();
  num_points_ = message->num_points();
  sensor_frame_ = message->frame_id();
  ASSIGN_OR_RETURN(stamp_, StampOf(*message));
  absl::StatusOr<PointCloud> cloud = DecodeCloud(message, std::move(data));
  decode_time_ = SteadyNow() - start;
  return cloud;
}

absl::StatusOr<HeldBytes> RequestTelemetry::Answer(InferResult result, v1::InferResponse* response) {
  const auto encode = [&](InferResult& encoded) {
    AppendStage({Stage::kDecode, decode_time_}, response);
    EncodeResult(encoded, response);
    return absl::OkStatus();
  };
  absl::Duration encode_time;
  absl::StatusOr<HeldBytes> held = AnswerWith(std::move(result), encode, response, &encode_time);
  if (held.ok()) AppendStage({Stage::kEncode, encode_time}, response);
  return held;
}

absl::StatusOr<HeldBytes> RequestTelemetry::Answer(
    InferResult result, const std::vector<std::string>& outputs,
    absl::FunctionRef<absl::Status(inference::ModelInferResponse* response)> finish,
    inference::ModelInferResponse* response) {
  const auto encode = [&](InferResult& encoded) {
    EncodeOpenInference(encoded, outputs, response);
    return finish(response);
  };
  absl::Duration encode_time;
  return AnswerWith(std::move(result), encode, response, &encode_time);
}

absl::StatusOr<HeldBytes> RequestTelemetry::AnswerWith(InferResult result,
                                                       absl::FunctionRef<absl::Status(InferResult& result)> encode,
                                                       google::protobuf::Message* response,
                                                       absl::Duration* encode_time) {
  const absl::Time encode_start = SteadyNow();
  std::optional<int64_t> num_boxes;
  if (const NamedOutput* boxes = result.Find(NamedOutput::kBoxes)) num_boxes = boxes->num_rows();
  const absl::Status encoded = encode(result);
  const int64_t bytes = static_cast<int64_t>(response->ByteSizeLong()) + kEnvelopeBytes;
  absl::StatusOr<HeldBytes> held;
  if (!encoded.ok()) {
    held = encoded;
  } else if (bytes > parts_->max_message_bytes) {
    held = WithReason(absl::ResourceExhaustedError(absl::StrCat("the response takes ", bytes,
                                                                " bytes, more than the server's limit of ",
                                                                parts_->max_message_bytes, " (--max_message_bytes)")),
                      error_reason::kResponseTooLarge);
  } else {
    held = parts_->bytes->Hold(ByteKind::kAnswer, names_.client, bytes);
  }
  if (!held.ok()) {
    response->Clear();
    Fail(held.status());
    return held.status();
  }
  const absl::Time now = SteadyNow();
  *encode_time = now - encode_start;

  Metrics& metrics = *parts_->metrics;
  metrics.OnStage(result.model, Stage::kDecode, decode_time_);
  metrics.OnStage(result.model, Stage::kEncode, *encode_time);
  metrics.OnRequest(result.model, result.version, absl::StatusCode::kOk, now - started_);
  if (num_boxes.has_value()) metrics.OnBoxes(result.model, *num_boxes);
  if (stamp_ != absl::InfinitePast()) metrics.OnFrameAge(result.model, absl::Now() - stamp_);
  Log(LogLevel::kDebug, "answered",
      {{"model", result.model},
       {"version", result.version},
       {"points", num_points_},
       {"voxels", result.counts.voxels},
       {"ms", absl::ToDoubleMilliseconds(now - started_)},
       {"request_id", Clipped(names_.request_id)},
       TraceIdField(names_.trace),
       SpanIdField(names_.trace),
       {"frame_id", Clipped(sensor_frame_)},
       {"peer", names_.peer}});
  return held;
}

// Logs before it measures, so that the measured time includes the time for the log.
void RequestTelemetry::Fail(const absl::Status& status) const {
  LogFailure(status);
  parts_->metrics->OnRequest(names_.model, names_.version, status.code(), SteadyNow() - started_);
}

void RequestTelemetry::Refuse(const absl::Status& status) const {
  Fail(status);
  parts_->metrics->OnRefusal(names_.model, status.code(), SteadyNow() - started_);
}

// Limits the log lines per reason, since an overload refuses thousands of requests a second; metrics count them all.
void RequestTelemetry::LogFailure(const absl::Status& status) const {
  const std::string reason = ReasonOf(status);
  const LogLevel level = LevelOf(status.code());
  const std::optional<int64_t> num_left_out = parts_->log_limiter->Admit(reason);
  if (!num_left_out.has_value()) return;
  if (*num_left_out > 0) Log(level, "not answered, and not logged", {{"reason", reason}, {"requests", *num_left_out}});
  Log(level, "not answered",
      {{"model", Clipped(names_.model)},
       {"version", names_.version},
       {"code", absl::StatusCodeToString(status.code())},
       {"reason", reason},
       {"error", Clipped(status.message())},
       {"points", num_points_},
       {"ms", absl::ToDoubleMilliseconds(SteadyNow() - started_)},
       {"request_id", Clipped(names_.request_id)},
       TraceIdField(names_.trace),
       SpanIdField(names_.trace),
       {"peer", names_.peer}});
}

std::string Clipped(absl::string_view text) {
  constexpr size_t kMaxBytes = 128;
  return text.size() <= kMaxBytes ? std::string(text) : absl::StrCat(CutAtCharacter(text, kMaxBytes), "...");
}

}  // namespace voxserve
