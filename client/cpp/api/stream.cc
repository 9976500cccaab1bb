#include "client/cpp/api/stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/api/channels.h"
#include "client/cpp/api/frame_encoding.h"
#include "client/cpp/api/reopening_stream.h"

namespace voxserve::client {
namespace {

absl::Status CheckRange(absl::string_view name, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", must be ", min, " to ", max));
}

absl::Status CheckDuration(absl::string_view name, const std::optional<absl::Duration>& value) {
  if (!value || (*value > absl::ZeroDuration() && *value < absl::InfiniteDuration())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", absl::FormatDuration(*value), ", must be positive and finite"));
}

}  // namespace

absl::Status StreamOptions::Validate() const {
  if (model.empty()) return absl::InvalidArgumentError("the stream names no model");
  if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
  if (reopen_for < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("reopen_for is ", absl::FormatDuration(reopen_for), ", must not be negative"));
  }
  for (const absl::Status& status :
       {CheckDuration("frame_timeout", frame_timeout), CheckRange("max_queued_frames", max_queued_frames, 0, 64),
        CheckRange("max_unsent_frames", max_unsent_frames, 1, 1024),
        CheckRange("num_sweeps", sweeps ? sweeps->num_sweeps : 1, 1, 64),
        CheckDuration("max_age", sweeps ? sweeps->max_age : std::nullopt)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

Stream::Stream(std::unique_ptr<ReopeningStream> calls) : calls_(std::move(calls)) {}
Stream::~Stream() = default;

absl::Status Stream::Send(uint64_t frame_id, const PointCloud& cloud, const FrameOptions& options) {
  if (absl::Status status = calls_->channels().CheckSize(cloud); !status.ok()) return status;
  if (calls_->has_sweeps() && !cloud.has_stamp()) {
    return absl::InvalidArgumentError(absl::StrCat("frame ", frame_id, " has no stamp, which sweeps need"));
  }
  return calls_->Send(
      {frame_id, cloud.num_points(), options, {EncodeFrameHeader(frame_id, options), EncodeCloud(cloud)}});
}

absl::Status Stream::SendPart(uint64_t frame_id, const PointCloud& cloud, bool is_last, const FrameOptions& options) {
  if (absl::Status status = calls_->channels().CheckSize(cloud); !status.ok()) return status;
  return calls_->SendPart({frame_id, cloud.num_points(), options, {EncodeCloud(cloud, FrameForm::kInParts)}}, is_last);
}

void Stream::CloseSends() { calls_->CloseSends(); }

void Stream::Cancel() { calls_->Cancel(); }

}  // namespace voxserve::client
