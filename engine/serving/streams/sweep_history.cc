#include "engine/serving/streams/sweep_history.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

int64_t BytesOf(const Sweep& sweep) { return static_cast<int64_t>(sweep.cloud.bytes().size()); }

}  // namespace

absl::StatusOr<std::vector<PlacedSweep>> SweepHistory::Add(PointCloud cloud, const Pose& pose, absl::Time stamp,
                                                           std::shared_ptr<const void> reservation) {
  RETURN_IF_ERROR(CheckPose(pose));
  if (stamp == absl::InfinitePast() || stamp == absl::InfiniteFuture()) {
    return WithReason(absl::InvalidArgumentError("the sweep's stamp is no time"), error_reason::kBadStamp);
  }
  if (!sweeps_.empty() && stamp < sweeps_.front()->stamp) {
    return WithReason(absl::InvalidArgumentError(
                          absl::StrCat("the sweep's stamp is ", absl::FormatDuration(sweeps_.front()->stamp - stamp),
                                       " before that of the sweep before it; a reset of the sweeps allows it")),
                      error_reason::kBadStamp);
  }
  sweeps_.push_front(std::make_shared<const Sweep>(
      Sweep{.cloud = std::move(cloud), .pose = pose, .stamp = stamp, .reservation = std::move(reservation)}));
  num_bytes_ += BytesOf(*sweeps_.front());
  while (sweeps_.size() > 1 && (num_sweeps() > options_.num_sweeps ||
                                stamp - sweeps_.back()->stamp > options_.max_age || num_bytes_ > options_.max_bytes)) {
    ForgetOldest();
  }
  std::vector<PlacedSweep> placed;
  placed.push_back({.sweep = sweeps_.front()});
  for (size_t i = 1; i < sweeps_.size(); ++i) {
    const Sweep& older = *sweeps_[i];
    placed.push_back({.sweep = sweeps_[i],
                      .transform = RelativeTransform(older.pose, pose),
                      .age_seconds = static_cast<float>(absl::ToDoubleSeconds(stamp - older.stamp))});
  }
  return placed;
}

void SweepHistory::Reset() {
  sweeps_.clear();
  num_bytes_ = 0;
}

void SweepHistory::ForgetOldest() {
  num_bytes_ -= BytesOf(*sweeps_.back());
  sweeps_.pop_back();
}

}  // namespace voxserve
