#include "server/calls/request_telemetry.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/cut_text.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/steady_time.h"
#include "engine/tensor/stage.h"
#include "server/codec/codec.h"

namespace voxserve {
namespace {

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

void RequestTelemetry::SetCloud(const v1::PointCloud& cloud) {
  num_points_ = cloud.num_points();
  sensor_frame_ = cloud.frame_id();
  stamp_ = StampOf(cloud).value_or(absl::InfinitePast());
}

void RequestTelemetry::Record(const InferResult& result, const RequestCodec& codec) const {
  const absl::Time now = SteadyNow();
  Metrics& metrics = *environment_->metrics;
  metrics.OnStage(result.model, Stage::kDecode, codec.decode_time());
  metrics.OnStage(result.model, Stage::kEncode, codec.encode_time());
  metrics.OnRequest(result.model, result.version, absl::StatusCode::kOk, now - started_);
  if (const NamedOutput* boxes = result.Find(NamedOutput::kBoxes)) metrics.OnBoxes(result.model, boxes->num_rows());
  if (stamp_ != absl::InfinitePast()) metrics.OnFrameAge(result.model, absl::Now() - stamp_);
  for (const FeatureWarning& warning : result.warnings) {
    metrics.OnFeatureWarning(result.model, warning.feature);
    LogWarning(result, warning);
  }
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
}

// A stream of clouds in a wrong unit would fill the log, so a model's feature has a line every ten minutes.
void RequestTelemetry::LogWarning(const InferResult& result, const FeatureWarning& warning) const {
  const std::string key = absl::StrCat("feature ", result.model, " ", warning.feature);
  if (!environment_->log_limiter->AdmitEvery(absl::Minutes(10), key).has_value()) return;
  Log(LogLevel::kWarning, "a cloud's values are not those that the model was trained on: another unit?",
      {{"model", result.model},
       {"version", result.version},
       {"feature", warning.feature},
       {"low", warning.range.low},
       {"high", warning.range.high},
       {"smallest", warning.smallest},
       {"largest", warning.largest},
       {"outside", warning.num_outside},
       {"of", warning.num_checked},
       {"request_id", Clipped(names_.request_id)},
       {"frame_id", Clipped(sensor_frame_)},
       {"peer", names_.peer}});
}

// Logs before it measures, so that the measured time includes the time for the log.
void RequestTelemetry::Fail(const absl::Status& status) const {
  LogFailure(status);
  environment_->metrics->OnRequest(names_.model, names_.version, status.code(), SteadyNow() - started_);
}

void RequestTelemetry::Refuse(const absl::Status& status) const {
  Fail(status);
  environment_->metrics->OnRefusal(names_.model, status.code(), SteadyNow() - started_);
}

// Limits the log lines per reason, since an overload refuses thousands of requests a second; metrics count them all.
void RequestTelemetry::LogFailure(const absl::Status& status) const {
  const std::string reason = ReasonOf(status);
  const LogLevel level = LevelOf(status.code());
  const std::optional<int64_t> num_left_out = environment_->log_limiter->Admit(reason);
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
