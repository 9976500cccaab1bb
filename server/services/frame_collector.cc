#include "server/services/frame_collector.h"

#include <algorithm>
#include <utility>

namespace voxserve {

std::unique_ptr<FrameParts> FrameCollector::Resume(uint64_t frame_id) {
  if (parts_ == nullptr || parts_->frame_id() != frame_id) return nullptr;
  is_out_ = true;
  return std::move(parts_);
}

bool FrameCollector::IsRecent(uint64_t frame_id) const {
  return std::find(recent_.begin(), recent_.end(), frame_id) != recent_.end();
}

void FrameCollector::Begin(uint64_t frame_id, absl::Time expiry, std::optional<absl::Status> end) {
  recent_.push_back(frame_id);
  if (recent_.size() > kMaxRecent) recent_.pop_front();
  is_out_ = true;
  end_ = std::move(end);
  expiry_ = expiry;
}

absl::Status FrameCollector::GiveBack(std::unique_ptr<FrameParts>* parts, absl::Status status) {
  is_out_ = false;
  const std::optional<absl::Status> end = std::exchange(end_, std::nullopt);
  if (status.ok() && end.has_value()) status = *end;
  if (status.ok() && !(*parts)->is_complete()) parts_ = std::move(*parts);
  return status;
}

std::unique_ptr<FrameParts> FrameCollector::TakeExpired(absl::Time now) {
  return NextExpiry() <= now ? Take() : nullptr;
}

std::unique_ptr<FrameParts> FrameCollector::TakeOrEnd(const absl::Status& why) {
  if (is_out_ && !end_.has_value()) end_ = why;
  return Take();
}

void FrameCollector::ExpireBy(absl::Time time) { expiry_ = std::min(expiry_, time); }

}  // namespace voxserve
