#include "server/call_limits.h"

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
  if (num_calls_ >= options_.max_calls) {
    return QueueFullError(absl::StrCat("the server holds ", num_calls_, " requests that wait, run or have answers to ",
                                       "send; its limit is ", options_.max_calls));
  }
  ++num_calls_;
  return absl::OkStatus();
}

void CallLimits::ReleaseCall() {
  absl::MutexLock lock(&mutex_);
  --num_calls_;
}

absl::Status CallLimits::AcceptStream() {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckDraining(); !status.ok()) return status;
  if (num_streams_ >= options_.max_streams) {
    return QueueFullError(
        absl::StrCat("the server holds ", num_streams_, " streams; its limit is ", options_.max_streams));
  }
  ++num_streams_;
  return absl::OkStatus();
}

void CallLimits::ReleaseStream() {
  absl::MutexLock lock(&mutex_);
  --num_streams_;
}

absl::Status CallLimits::HoldAnswer(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (Exceeds(unsent_bytes_, bytes, options_.max_unsent_bytes)) {
    return QueueFullError(
        absl::StrCat("answers of ", unsent_bytes_, " bytes wait for their clients to read them; with ", bytes,
                     " more they exceed the server's limit of ", options_.max_unsent_bytes, " (--grpc_memory_bytes)"));
  }
  unsent_bytes_ += bytes;
  return absl::OkStatus();
}

void CallLimits::ReleaseAnswer(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  unsent_bytes_ -= bytes;
}

absl::Status CallLimits::HoldFrame(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (Exceeds(frame_bytes_, bytes, options_.max_frame_bytes)) {
    return QueueFullError(absl::StrCat("frames of ", frame_bytes_, " bytes wait in all streams; with ", bytes,
                                       " more they exceed the server's limit of ", options_.max_frame_bytes,
                                       " (--max_queue_bytes)"));
  }
  frame_bytes_ += bytes;
  return absl::OkStatus();
}

void CallLimits::ReleaseFrame(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  frame_bytes_ -= bytes;
}

absl::Status CallLimits::HoldSweep(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (Exceeds(sweep_bytes_, bytes, options_.max_sweep_bytes)) {
    return QueueFullError(absl::StrCat("all streams together keep sweeps of ", sweep_bytes_, " bytes; with ", bytes,
                                       " more they exceed the server's limit of ", options_.max_sweep_bytes));
  }
  sweep_bytes_ += bytes;
  return absl::OkStatus();
}

void CallLimits::ReleaseSweeps(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  sweep_bytes_ -= bytes;
}

void CallLimits::StartDraining() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

int64_t CallLimits::AwaitReleases(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto is_empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_calls_ + num_streams_ == 0; };
  mutex_.AwaitWithDeadline(absl::Condition(&is_empty), deadline);
  return num_calls_ + num_streams_;
}

}  // namespace voxserve
