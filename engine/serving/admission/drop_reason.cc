#include "engine/serving/admission/drop_reason.h"

#include <string>

#include "engine/base/error_reason.h"

namespace voxserve {

std::optional<DropReason> DropReasonOf(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  if (reason == error_reason::kDraining) return DropReason::kDraining;
  if (reason == error_reason::kQueueFull) return DropReason::kQueueFull;
  if (reason == error_reason::kSuperseded) return DropReason::kSuperseded;
  if (reason == error_reason::kDeadlineUnmeetable) return DropReason::kUnmeetable;
  if (absl::IsDeadlineExceeded(status)) return DropReason::kExpired;
  if (absl::IsCancelled(status)) return DropReason::kCancelled;
  return std::nullopt;
}

}  // namespace voxserve
