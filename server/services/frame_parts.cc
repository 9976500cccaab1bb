#include "server/services/frame_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "server/codec/codec.h"

namespace voxserve {
namespace {

constexpr size_t kMaxNamedGaps = 4;  // in an error

absl::Status BadPart(const std::string& message) {
  return WithReason(absl::InvalidArgumentError(message), error_reason::kBadPart);
}

bool AreEqual(const std::vector<PointField>& a, const std::vector<PointField>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const PointField& one, const PointField& other) {
    return one.name == other.name && one.offset == other.offset && one.type == other.type && one.count == other.count &&
           one.scale == other.scale && one.shift == other.shift;
  });
}

int64_t PointBytes(const PointCloud& cloud) {
  return static_cast<int64_t>(cloud.num_points() * cloud.layout().point_step);
}

std::string Range(uint32_t first, uint32_t last) {
  return first == last ? absl::StrCat(first) : absl::StrCat(first, " to ", last);
}

}  // namespace

absl::Status FrameParts::Add(const v1::FramePart& message, PointCloud cloud, HeldBytes held) {
  const uint32_t index = message.index();
  reset_sweeps_ = reset_sweeps_ || message.reset_sweeps();
  RETURN_IF_ERROR(CheckIndex(index, message.is_last()));
  RETURN_IF_ERROR(CheckLayout(cloud.layout()));
  RETURN_IF_ERROR(CheckSize(cloud));
  if (message.is_last()) last_ = index;
  if (message.has_pose()) pose_.Offer(index, DecodePose(message.pose()));
  const google::protobuf::Timestamp& stamp = message.cloud().stamp();
  if (stamp.seconds() != 0 || stamp.nanos() != 0) stamp_.Offer(index, stamp);  // time zero means unknown
  if (!message.cloud().frame_id().empty()) sensor_frame_.Offer(index, message.cloud().frame_id());
  if (index != next_) {
    waiting_.emplace(index, Waiting{std::move(cloud), std::move(held)});
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Append(cloud));
  ++next_;
  for (auto next = waiting_.begin(); next != waiting_.end() && next->first == next_; ++next_) {
    RETURN_IF_ERROR(Append(next->second.cloud));
    next = waiting_.erase(next);
  }
  return absl::OkStatus();
}

absl::Status FrameParts::CheckIndex(uint32_t index, bool is_last) const {
  if (index >= kMaxParts) {
    return BadPart(
        absl::StrCat("part ", index, " of frame ", frame_id_, ": a frame has at most ", kMaxParts, " parts"));
  }
  if (index < next_ || waiting_.count(index) > 0) {
    return BadPart(absl::StrCat("part ", index, " of frame ", frame_id_, " came twice"));
  }
  if (last_.has_value() && (is_last || index > *last_)) {
    return BadPart(absl::StrCat("part ", index, " of frame ", frame_id_, is_last ? " is_last" : " has come",
                                ", but part ", *last_, " was the last"));
  }
  if (is_last && !waiting_.empty() && waiting_.rbegin()->first > index) {
    return BadPart(absl::StrCat("part ", index, " of frame ", frame_id_, " is_last, but part ",
                                waiting_.rbegin()->first, " has come"));
  }
  return absl::OkStatus();
}

absl::Status FrameParts::CheckLayout(const PointCloudLayout& layout) {
  if (layout.num_points == 0 && layout.fields.empty()) return absl::OkStatus();
  if (!step_.has_value()) {
    step_.emplace();
    step_->point_step = layout.point_step;
    step_->is_bigendian = layout.is_bigendian;
  }
  const bool is_same_step = layout.point_step == step_->point_step && layout.is_bigendian == step_->is_bigendian;
  if (fields_.empty()) fields_ = layout.fields;
  if (is_same_step && (layout.fields.empty() || AreEqual(layout.fields, fields_))) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat("two parts of frame ", frame_id_, " differ in their ",
                                                            layout.point_step != step_->point_step ? "point_step"
                                                            : !is_same_step                        ? "is_bigendian"
                                                                                                   : "fields")),
                    error_reason::kBadLayout);
}

absl::Status FrameParts::CheckSize(const PointCloud& cloud) {
  if (cloud.num_points() > options_.max_points || num_points_ + cloud.num_points() > options_.max_points) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("the parts of frame ", frame_id_,
                                                              " have more points than the limit of model \"",
                                                              options_.model, "\", which is ", options_.max_points)),
                      error_reason::kTooManyPoints);
  }
  const int64_t bytes = PointBytes(cloud);
  if (num_bytes_ + bytes > options_.max_bytes) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "the points of the parts of frame ", frame_id_, " have ", num_bytes_ + bytes,
                          " bytes or more; a message may have ", options_.max_bytes, " (--max_message_bytes)")),
                      error_reason::kFrameTooLarge);
  }
  num_points_ += cloud.num_points();
  num_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status FrameParts::Append(const PointCloud& cloud) {
  const int64_t bytes = PointBytes(cloud);
  if (bytes == 0) return absl::OkStatus();
  if (used_ + bytes > buffer_.size()) RETURN_IF_ERROR(Grow(used_ + bytes));
  const PointCloudLayout& layout = cloud.layout();
  const auto row_bytes = static_cast<size_t>(bytes / layout.height);
  if (layout.row_step == row_bytes) {
    buffer_.Write(used_, cloud.bytes().substr(0, static_cast<size_t>(bytes)));
  } else {
    for (uint64_t row = 0; row < layout.height; ++row) {
      buffer_.Write(used_ + static_cast<int64_t>(row * row_bytes),
                    cloud.bytes().substr(row * layout.row_step, row_bytes));
    }
  }
  buffer_.FinishWrites();
  used_ += bytes;
  return absl::OkStatus();
}

absl::Status FrameParts::Grow(int64_t bytes) {
  // A scan has some percent more points than the one before it, or fewer.
  const int64_t wanted =
      buffer_.size() == 0 ? options_.expected_bytes + options_.expected_bytes / 8 : 2 * buffer_.size();
  int64_t capacity = std::max(bytes, std::min(wanted, options_.max_bytes));
  absl::StatusOr<HeldBytes> held = options_.hold(capacity);
  if (!held.ok() && capacity > bytes) {
    capacity = bytes;
    held = options_.hold(capacity);
  }
  if (!held.ok()) return held.status();
  ASSIGN_OR_RETURN(HostBuffer larger, options_.allocate(capacity));
  larger.Write(0, buffer_.bytes().substr(0, static_cast<size_t>(used_)));
  buffer_ = std::move(larger);
  held_ = *std::move(held);
  return absl::OkStatus();
}

absl::Status FrameParts::Incomplete(absl::StatusCode code, std::string_view what_happened) const {
  std::vector<std::string> gaps;
  uint32_t begin = next_;
  for (const auto& [index, part] : waiting_) {
    if (begin < index) gaps.push_back(Range(begin, index - 1));
    begin = index + 1;
  }
  if (!last_.has_value()) {
    gaps.push_back(absl::StrCat(begin, " and all after it"));
  } else if (begin <= *last_) {
    gaps.push_back(Range(begin, *last_));
  }
  if (gaps.size() > kMaxNamedGaps) {
    gaps.resize(kMaxNamedGaps);
    gaps.push_back("more");
  }
  return WithReason(
      absl::Status(code, absl::StrCat("frame ", frame_id_, " lacks parts ", absl::StrJoin(gaps, ", "), ": ",
                                      absl::string_view(what_happened.data(), what_happened.size()))),
      error_reason::kFrameIncomplete);
}

v1::PointCloud FrameParts::Description() const {
  v1::PointCloud description;
  description.set_num_points(num_points_);
  if (stamp_.value.has_value()) *description.mutable_stamp() = *stamp_.value;
  if (sensor_frame_.value.has_value()) description.set_frame_id(*sensor_frame_.value);
  return description;
}

absl::StatusOr<PointCloud> FrameParts::TakeCloud() {
  PointCloudLayout layout = step_.value_or(PointCloudLayout());
  layout.num_points = num_points_;
  layout.fields = std::move(fields_);
  buffer_.Shrink(used_);
  return PointCloud::Create(std::move(layout), std::move(buffer_));
}

}  // namespace voxserve
