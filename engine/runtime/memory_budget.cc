#include "engine/runtime/memory_budget.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/fault.h"
#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

bool Waits(MemoryBudget::Use use) {
  switch (use) {
    case MemoryBudget::Use::kRequests:
    case MemoryBudget::Use::kSweeps:
    case MemoryBudget::Use::kAnswers:
    case MemoryBudget::Use::kTuning:
      return true;
    case MemoryBudget::Use::kScratch:
    case MemoryBudget::Use::kModels:
    case MemoryBudget::Use::kPinned:
      break;
  }
  return false;
}

// Returns true if a test injects a refusal of this use. FaultSite begins with one site per use, in the order of
// MemoryBudget::Use.
bool RefusalIsInjected(MemoryBudget::Use use) {
  static_assert(static_cast<size_t>(FaultSite::kReservePinned) == static_cast<size_t>(MemoryBudget::Use::kPinned));
  return FaultAt(static_cast<FaultSite>(use));
}

}  // namespace

MemoryBudget::Reservation& MemoryBudget::Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::exchange(other.budget_, nullptr);
  use_ = other.use_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

absl::Status MemoryBudget::Reservation::Resize(int64_t bytes) {
  if (budget_ == nullptr) return absl::OkStatus();
  if (bytes <= bytes_) {
    budget_->GiveBack(use_, std::exchange(bytes_, bytes) - bytes);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(Reservation more, budget_->Reserve(use_, bytes - bytes_));
  bytes_ += std::exchange(more.bytes_, 0);
  return absl::OkStatus();
}

void MemoryBudget::Reservation::Release() {
  if (budget_ != nullptr) budget_->GiveBack(use_, bytes_);
  budget_ = nullptr;
  bytes_ = 0;
}

absl::StatusOr<MemoryBudget::Reservation> MemoryBudget::Reserve(Use use, int64_t bytes, int64_t in_place_of) {
  absl::MutexLock lock(&mutex_);
  const bool waits = Waits(use);
  int64_t held_waiting = 0;
  for (size_t i = 0; i < kNumUses; ++i) held_waiting += Waits(static_cast<Use>(i)) ? held_[i] : 0;
  const int64_t held_in_all = std::accumulate(held_.begin(), held_.end(), int64_t{0});
  const int64_t waiting_limit = limit_bytes_ / 2;
  const bool fits = bytes <= limit_bytes_ - held_in_all + in_place_of &&
                    (!waits || bytes <= waiting_limit - held_waiting + in_place_of);
  if ((limit_bytes_ > 0 && !fits) || RefusalIsInjected(use)) {
    const std::string message =
        absl::StrCat(bytes, " bytes of ", std::string(NameOf(use)), " do not fit the server's memory: ", held_in_all,
                     " bytes are held, ", held_waiting, " of them for what waits; the limits are ", limit_bytes_,
                     " and ", waiting_limit, " (--memory_limit)");
    if (waits && bytes <= waiting_limit) return QueueFullError(message);
    return OutOfMemoryError(message);
  }
  held_[static_cast<size_t>(use)] += bytes;
  return Reservation(this, use, bytes);
}

void MemoryBudget::GiveBack(Use use, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  held_[static_cast<size_t>(use)] -= bytes;
}

int64_t MemoryBudget::held(Use use) const {
  absl::MutexLock lock(&mutex_);
  return held_[static_cast<size_t>(use)];
}

int64_t MemoryBudget::held() const {
  absl::MutexLock lock(&mutex_);
  return std::accumulate(held_.begin(), held_.end(), int64_t{0});
}

std::string_view NameOf(MemoryBudget::Use use) {
  switch (use) {
    case MemoryBudget::Use::kRequests:
      return "requests";
    case MemoryBudget::Use::kSweeps:
      return "sweeps";
    case MemoryBudget::Use::kAnswers:
      return "answers";
    case MemoryBudget::Use::kTuning:
      return "tuning";
    case MemoryBudget::Use::kScratch:
      return "scratch";
    case MemoryBudget::Use::kModels:
      return "models";
    case MemoryBudget::Use::kPinned:
      break;
  }
  return "pinned";
}

}  // namespace voxserve
