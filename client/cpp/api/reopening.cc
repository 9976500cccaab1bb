#include "client/cpp/api/reopening.h"

#include <algorithm>

#include "client/cpp/api/error.h"

namespace voxserve::client {
namespace {

// The delay before the second attempt in a row. The first attempt has no delay.
constexpr absl::Duration kFirstDelay = absl::Milliseconds(100);
constexpr absl::Duration kMaxDelay = absl::Seconds(1);

}  // namespace

void Reopening::Hear() {
  broken_since_.reset();
  num_failures_ = 0;
}

std::optional<absl::Duration> Reopening::Delay(const absl::Status& status, absl::Time now) {
  if (!is_wanted() || !absl::IsUnavailable(status) || ErrorReason(status) == kTlsFailed) return std::nullopt;
  if (!broken_since_ || now - began_ > limit_) {  // the call was open for longer than the limit, even if no answer came
    broken_since_ = now;
    num_failures_ = 0;
  }
  ++num_failures_;
  absl::Duration delay = absl::ZeroDuration();
  if (num_failures_ > 1) delay = std::min(kMaxDelay, kFirstDelay * (1 << std::min(num_failures_ - 2, 8)));
  if (const absl::Duration asked = RetryDelay(status); asked < absl::InfiniteDuration()) delay = std::max(delay, asked);
  if (now + delay - *broken_since_ > limit_) return std::nullopt;
  return delay;
}

}  // namespace voxserve::client
