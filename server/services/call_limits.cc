#include "server/services/call_limits.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

// One alone may be larger than the limit: it could never be served otherwise.
bool Exceeds(int64_t held, int64_t more, int64_t limit) { return held > 0 && held + more > limit; }

}  // namespace

absl::Status CallLimits::CheckDraining() const {
  if (!draining_) return absl::OkStatus();
  return WithReason(absl::UnavailableError("the server is shutting down"), error_reason::kDraining);
}

absl::Status CallLimits::AcceptCall() {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckDraining(); !status.ok()) return status;
  if (num_answers_ >= options_.max_answers) {
    return QueueFullError(absl::StrCat(
        num_answers_, " answers wait for their clients to read them; the server's limit is ", options_.max_answers));
  }
  ++held_.calls;
  return absl::OkStatus();
}

void CallLimits::StartAnswer() {
  absl::MutexLock lock(&mutex_);
  ++num_answers_;
}

void CallLimits::ReleaseCall() {
  absl::MutexLock lock(&mutex_);
  --num_answers_;
  --held_.calls;
}

absl::Status CallLimits::AcceptStream() {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckDraining(); !status.ok()) return status;
  if (held_.streams >= options_.max_streams) {
    return QueueFullError(
        absl::StrCat("the server holds ", held_.streams, " streams; its limit is ", options_.max_streams));
  }
  ++held_.streams;
  return absl::OkStatus();
}

void CallLimits::ReleaseStream() {
  absl::MutexLock lock(&mutex_);
  --held_.streams;
}

absl::Status CallLimits::HoldAnswer(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (Exceeds(held_.unsent_bytes, bytes, options_.max_unsent_bytes)) {
    return QueueFullError(
        absl::StrCat("answers of ", held_.unsent_bytes, " bytes wait for their clients to read them; with ", bytes,
                     " more they exceed the server's limit of ", options_.max_unsent_bytes, " (--grpc_memory_bytes)"));
  }
  held_.unsent_bytes += bytes;
  return absl::OkStatus();
}

void CallLimits::ReleaseAnswer(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  held_.unsent_bytes -= bytes;
}

absl::Status CallLimits::HoldFrame(int64_t bytes, int64_t in_place_of) {
  absl::MutexLock lock(&mutex_);
  if (Exceeds(held_.frame_bytes - in_place_of, bytes, options_.max_frame_bytes)) {
    return QueueFullError(absl::StrCat("frames of ", held_.frame_bytes, " bytes wait in all streams; with ", bytes,
                                       " more they exceed the server's limit of ", options_.max_frame_bytes,
                                       " (--max_queue_bytes)"));
  }
  held_.frame_bytes += bytes;
  return absl::OkStatus();
}

void CallLimits::ReleaseFrame(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  held_.frame_bytes -= bytes;
}

absl::StatusOr<std::shared_ptr<const void>> CallLimits::HoldSweep(int64_t bytes, int64_t in_place_of) {
  absl::MutexLock lock(&mutex_);
  const int64_t held = *sweep_bytes_;
  if (Exceeds(held - in_place_of, bytes, options_.max_sweep_bytes)) {
    return QueueFullError(absl::StrCat("all streams together keep sweeps of ", held, " bytes; with ", bytes,
                                       " more they exceed the server's limit of ", options_.max_sweep_bytes));
  }
  *sweep_bytes_ += bytes;
  return std::shared_ptr<const void>(nullptr, [total = sweep_bytes_, bytes](const void*) { *total -= bytes; });
}

void CallLimits::StartDraining() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

int64_t CallLimits::AwaitReleases(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto is_empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_.calls + held_.streams == 0; };
  mutex_.AwaitWithDeadline(absl::Condition(&is_empty), deadline);
  return held_.calls + held_.streams;
}

CallLimits::Held CallLimits::held() const {
  absl::MutexLock lock(&mutex_);
  Held held = held_;
  held.sweep_bytes = *sweep_bytes_;
  return held;
}

}  // namespace voxserve
