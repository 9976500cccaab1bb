#include "server/calls/stream_call.h"

#include <algorithm>
#include <utility>

#include "engine/base/error_reason.h"
#include "engine/base/steady_time.h"

namespace voxserve {
namespace {

// While this many answers wait for the client to read them, the stream reads no requests.
constexpr size_t kMaxUnsentAnswers = 8;

}  // namespace

void StreamCall::Start() {
  {
    absl::MutexLock lock(&mutex_);
    last_sign_ = SteadyNow();
  }
  Advance();
}

// If `ok` is false, the client has half-closed, or it is gone and gRPC also calls OnCancel.
void StreamCall::OnReadDone(bool ok) {
  if (ok) CountMessage(request_);
  {
    absl::MutexLock lock(&mutex_);
    is_handling_ = ok;
  }
  if (ok && !Guard([this] { OnMessage(&request_); })) EndOutOfMemory();
  request_.Clear();
  if (!ok) OnReadAll();
  {
    absl::MutexLock lock(&mutex_);
    is_reading_ = false;
    is_handling_ = false;
    last_sign_ = SteadyNow();
    if (!ok) {
      has_read_all_ = true;
      if (!end_.has_value()) end_ = absl::OkStatus();
    }
  }
  Advance();
}

// If `ok` is false, the client is gone.
void StreamCall::OnWriteDone(bool ok) {
  StopAnswerTimer();
  sending_ = Outgoing();
  {
    absl::MutexLock lock(&mutex_);
    is_writing_ = false;
    last_sign_ = SteadyNow();
    if (!ok) DropAnswers();
  }
  Advance();
}

void StreamCall::OnCancel() {
  CountEarlyEnd();
  const absl::Status why = WhyCancelled();
  {
    absl::MutexLock lock(&mutex_);
    if (is_finished_) return;
    if (!end_.has_value() || end_->ok()) end_ = why;
    DropAnswers();
  }
  CancelRequests(why);
  Advance();
}

void StreamCall::OnClosed() {
  Guard([this] {
    if (!has_message()) CountEarlyEnd();
  });
  absl::MutexLock lock(&mutex_);
  environment().timers->Clear(timer_);
  OnStreamClosed();
}

void StreamCall::DropAnswers() {
  is_broken_ = true;
  unsent_.clear();
}

bool StreamCall::KeepAnswer(Outgoing outgoing) {
  const bool is_kept = Guard([&] {
    absl::MutexLock lock(&mutex_);
    if (!is_broken_ && outgoing.message.Valid()) unsent_.push_back(std::move(outgoing));
  });
  if (!is_kept) EndOutOfMemory();
  return is_kept;
}

void StreamCall::BeginRequest(bool has_points) {
  ++num_unanswered_;
  if (has_points) BeginUse();
}

void StreamCall::EndRequest() {
  {
    absl::MutexLock lock(&mutex_);
    if (--num_unanswered_ == 0) EndUse();
  }
  Advance();
}

void StreamCall::Fail(const absl::Status& whole_status) {
  const absl::Status status = caller().Narrowed(whole_status);
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    const std::string reason = ReasonOf(status);
    if (reason == error_reason::kStreamIdle || reason == error_reason::kGaveWay) {
      environment().metrics->OnCallEndedEarly(reason);
    }
    end_ = status;
  }
  OnFailed(status);
  Advance();
}

void StreamCall::EndOutOfMemory() {
  Guard([this] { Fail(OutOfMemoryError()); });
}

void StreamCall::Advance() {
  while (StartNext()) continue;
}

// Starts the operations that can start now. Returns true if the caller must call it again, since further operations may
// have become possible meanwhile.
bool StreamCall::StartNext() {
  bool may_read = false;
  bool may_write = false;
  bool may_finish = false;
  {
    absl::MutexLock lock(&mutex_);
    if (is_finished_) return false;
    if (!is_writing_ && !unsent_.empty()) {
      is_writing_ = may_write = true;
      sending_ = std::move(unsent_.front());
      unsent_.pop_front();
    }
    if (MayRead()) {
      is_reading_ = may_read = true;
      ++num_starting_reads_;
    }
    // A read may be in progress when the stream finishes, but no thread may start one after Finish. A message that has
    // come still gets its answers.
    const bool is_idle = !HasUnanswered() && !is_handling_ && !is_writing_ && num_starting_reads_ == 0;
    if (end_.has_value() && is_idle) is_finished_ = may_finish = true;
    if (!is_finished_) SetTimers();
  }
  if (may_finish) {
    StartAnswerTimer(0);
    Finish(GrpcStatusOf(*end_));
  }
  if (may_write) {
    StartAnswerTimer(static_cast<int64_t>(sending_.message.Length()));
    StartWrite(&sending_.message);
  }
  if (!may_read) return false;
  StartRead(&request_);
  absl::MutexLock lock(&mutex_);
  --num_starting_reads_;
  return true;
}

bool StreamCall::MayRead() const {
  if (is_reading_ || has_read_all_ || unsent_.size() >= kMaxUnsentAnswers) return false;
  // A draining server reads on while it has requests to answer, so that clients get an error for each one they send.
  if (end_.has_value() && !(draining_ && HasUnanswered())) return false;
  return HasRoom();
}

absl::Time StreamCall::AllowedSilenceEnds() const {
  const bool is_busy = HasUnanswered() || is_writing_ || !unsent_.empty();
  return is_busy || end_.has_value() ? absl::InfiniteFuture() : SilenceEnds();
}

void StreamCall::SetTimers() {
  const absl::Time next = std::min(NextExpiry(), AllowedSilenceEnds());
  if (next >= timer_time_) return;
  environment().timers->Clear(timer_);
  timer_ = SetTimer(next, &StreamCall::OnTimer);
  timer_time_ = timer_ == 0 ? absl::InfiniteFuture() : next;
}

void StreamCall::OnTimer() {
  std::optional<absl::Status> silence;
  {
    absl::MutexLock lock(&mutex_);
    timer_time_ = absl::InfiniteFuture();
    if (AllowedSilenceEnds() <= SteadyNow()) silence = SilenceError();
  }
  if (silence.has_value()) Fail(*silence);
  ExpireDue();
  Advance();
}

}  // namespace voxserve
