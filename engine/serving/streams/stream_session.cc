#include "engine/serving/streams/stream_session.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/serving/admission/drop_reason.h"

namespace voxserve {
namespace {

absl::Status Superseded() {
  return WithReason(absl::AbortedError("a newer frame of the stream came before this one started"),
                    error_reason::kSuperseded);
}

absl::Status Expired(absl::Duration age, const char* what_happened) {
  return WithReason(absl::DeadlineExceededError(absl::StrCat("the frame's time is up: ", absl::FormatDuration(age),
                                                             " after it came ", what_happened)),
                    error_reason::kDeadlineExpired);
}

}  // namespace

std::shared_ptr<StreamSession> StreamSession::Create(Config config, Options options) {
  return std::shared_ptr<StreamSession>(new StreamSession(std::move(config), std::move(options)));
}

StreamSession::StreamSession(Config config, Options options)
    : config_(std::move(config)), options_(std::move(options)) {
  if (config_.sweeps.has_value()) history_.emplace(*config_.sweeps);
}

void StreamSession::Push(StreamFrame pushed) {
  Add(std::move(pushed));
  Advance();
}

void StreamSession::Add(StreamFrame pushed) {
  const auto frame = std::make_shared<Frame>();
  frame->arrived = options_.now();
  frame->deadline = frame->arrived + config_.frame_timeout;
  frame->done = std::move(pushed.done);
  if (pushed.cloud.ok()) frame->cloud_bytes = static_cast<int64_t>(pushed.cloud->bytes().size());
  const absl::Status taken = AddCloud(pushed, frame.get());
  absl::MutexLock lock(&mutex_);
  if (cancelled_.has_value()) {
    End(*frame, *cancelled_);
  } else if (draining_ && !pushed.is_accepted) {
    End(*frame, DrainingError());
  } else if (!taken.ok()) {
    End(*frame, taken);
  } else if (config_.policy == StreamPolicy::kLatest) {
    SupersedeOlder();
  }
  frames_.push_back(frame);
}

absl::Status StreamSession::AddCloud(StreamFrame& pushed, Frame* frame) {
  if (config_.sweeps.has_value()) return AddSweep(pushed, frame);
  if (!pushed.cloud.ok()) return pushed.cloud.status();
  frame->task.cloud = *std::move(pushed.cloud);
  return absl::OkStatus();
}

absl::Status StreamSession::AddSweep(StreamFrame& pushed, Frame* frame) {
  // Resets even if this frame is bad, since the jump that the client reports has happened.
  if (pushed.reset_sweeps) ForgetSweeps();
  if (!pushed.cloud.ok()) return pushed.cloud.status();
  if (!pushed.pose.has_value()) {
    return WithReason(absl::InvalidArgumentError("sweeps accumulate in this stream, and the frame has no pose"),
                      error_reason::kBadPose);
  }
  if (pushed.stamp == absl::InfinitePast()) {
    return WithReason(
        absl::InvalidArgumentError("sweeps accumulate in this stream, and the frame's cloud has no stamp"),
        error_reason::kMissingStamp);
  }
  InferTask& task = frame->task;
  task.cloud = *pushed.cloud;
  task.age_feature = config_.age_feature;
  absl::MutexLock lock(&sweeps_mutex_);
  absl::StatusOr<std::vector<PlacedSweep>> sweeps =
      history_->Add(*std::move(pushed.cloud), *pushed.pose, pushed.stamp, std::move(pushed.reservation));
  if (!sweeps.ok()) return sweeps.status();
  sweeps_expiry_ = frame->arrived + config_.sweeps->max_age + kMaxJitter;
  task.sweeps = *std::move(sweeps);
  frame->num_sweeps = static_cast<int>(task.sweeps.size());
  return absl::OkStatus();
}

int64_t StreamSession::SweepBytes() const {
  absl::MutexLock lock(&sweeps_mutex_);
  return history_.has_value() ? history_->num_bytes() : 0;
}

void StreamSession::ForgetSweeps() {
  absl::MutexLock lock(&sweeps_mutex_);
  ResetHistory();
}

void StreamSession::KeepSweeps() {
  absl::MutexLock lock(&sweeps_mutex_);
  if (sweeps_expiry_ == absl::InfiniteFuture()) return;
  sweeps_expiry_ = std::max(sweeps_expiry_, options_.now() + config_.sweeps->max_age + kMaxJitter);
}

void StreamSession::ResetHistory() {
  if (history_.has_value()) history_->Reset();
  sweeps_expiry_ = absl::InfiniteFuture();
}

int64_t StreamSession::BytesAheadOfNext() const {
  if (config_.policy != StreamPolicy::kLatest) return 0;
  absl::MutexLock lock(&mutex_);
  int64_t bytes = 0;
  for (const FramePtr& frame : frames_) bytes += frame->cloud_bytes;
  return bytes;
}

bool StreamSession::HasRoom() const {
  absl::MutexLock lock(&mutex_);
  return config_.policy == StreamPolicy::kLatest || frames_.size() < static_cast<size_t>(config_.max_queued_frames);
}

void StreamSession::StartDraining() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

void StreamSession::Cancel(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_.has_value()) return;
    cancelled_ = why;
    for (const FramePtr& frame : frames_) {
      if (frame->state == Frame::State::kWaiting) End(*frame, why);
    }
  }
  Advance();
}

void StreamSession::ExpireDue() {
  bool is_busy = false;
  {
    absl::MutexLock lock(&mutex_);
    EndExpired();
    is_busy = !frames_.empty();
  }
  if (is_busy) {
    KeepSweeps();
  } else {
    absl::MutexLock lock(&sweeps_mutex_);
    if (sweeps_expiry_ <= options_.now()) ResetHistory();
  }
  Advance();
}

absl::Time StreamSession::NextExpiry() const {
  absl::Time next;
  {
    absl::MutexLock lock(&sweeps_mutex_);
    next = sweeps_expiry_;
  }
  absl::MutexLock lock(&mutex_);
  for (const FramePtr& frame : frames_) {
    if (frame->state == Frame::State::kWaiting) next = std::min(next, frame->deadline);
  }
  return next;
}

void StreamSession::SupersedeOlder() {
  for (const FramePtr& frame : frames_) {
    if (frame->state == Frame::State::kWaiting) End(*frame, Superseded());
    if (frame->state == Frame::State::kSubmitted) frame->is_superseded = true;
  }
}

void StreamSession::End(Frame& frame, const absl::Status& status) {
  frame.state = Frame::State::kEnded;
  frame.result = status;
  frame.num_sweeps = 0;
  const std::optional<DropReason> reason = DropReasonOf(status);
  if (reason.has_value() && options_.observer != nullptr) options_.observer->OnDropped(config_.model, *reason);
}

void StreamSession::EndOutOfMemory(Frame& frame) {
  frame.state = Frame::State::kEnded;
  frame.result = out_of_memory_;
  frame.num_sweeps = 0;
}

void StreamSession::EndExpired() {
  const absl::Time now = options_.now();
  for (const FramePtr& frame : frames_) {
    if (frame->state != Frame::State::kWaiting || frame->deadline > now) continue;
    try {
      End(*frame, Expired(now - frame->arrived, "an older frame of the stream still ran"));
    } catch (const std::bad_alloc&) {
      EndOutOfMemory(*frame);
    }
  }
}

void StreamSession::OnResult(Frame& frame, absl::StatusOr<InferResult> result) {
  // Forgets the sweeps when a frame is refused: the sweep that caused it would cause the next frames to be refused too.
  if (absl::IsInvalidArgument(result.status())) ForgetSweeps();
  {
    absl::MutexLock lock(&mutex_);
    const bool was_cancelled = absl::IsCancelled(result.status());
    try {
      if (cancelled_.has_value() && (result.ok() || was_cancelled)) {
        result = *cancelled_;
      } else if (frame.is_superseded && was_cancelled) {
        waiting_since_ = frame.waiting_since;
        result = Superseded();
      }
      const absl::Time now = options_.now();
      if (result.ok() && now > frame.deadline) result = Expired(now - frame.arrived, "its answer was ready");
    } catch (const std::bad_alloc&) {
      result = out_of_memory_;
    }
    if (!result.ok()) frame.num_sweeps = 0;
    frame.state = Frame::State::kEnded;
    frame.result = std::move(result);
  }
  Advance();
}

// Takes steps until none is left. Returns at once if another thread is in Advance, since that thread takes all steps.
void StreamSession::Advance() {
  {
    absl::MutexLock lock(&mutex_);
    if (is_advancing_) return;
    is_advancing_ = true;
  }
  for (;;) {
    Step step;
    {
      absl::MutexLock lock(&mutex_);
      step = NextStep();
      if (step.run == nullptr) {
        is_advancing_ = false;
        return;
      }
    }
    (this->*step.run)(step.frame);
  }
}

StreamSession::Step StreamSession::NextStep() {
  // Gives work to the engine first, since answers take longer to write.
  if (FramePtr frame = NextToSubmit()) return {&StreamSession::SubmitFrame, std::move(frame)};
  if (FramePtr frame = NextToCancel()) return {&StreamSession::CancelFrame, std::move(frame)};
  if (FramePtr frame = NextToAnswer()) return {&StreamSession::AnswerFrame, std::move(frame)};
  return {};
}

StreamSession::FramePtr StreamSession::NextToSubmit() {
  EndExpired();
  FramePtr next;
  for (const FramePtr& frame : frames_) {
    if (frame->state == Frame::State::kSubmitted && config_.policy == StreamPolicy::kLatest) return nullptr;
    if (frame->state == Frame::State::kWaiting && next == nullptr) next = frame;
  }
  if (next == nullptr) return nullptr;
  next->state = Frame::State::kSubmitted;
  next->waiting_since = std::exchange(waiting_since_, std::nullopt).value_or(options_.now());
  return next;
}

void StreamSession::SubmitFrame(const FramePtr& frame) {
  try {
    InferTask task = std::exchange(frame->task, InferTask());
    task.model = config_.model;
    task.client = config_.client;
    task.client_share = config_.client_share;
    task.version = config_.version;
    task.return_scores = config_.return_scores;
    task.tensors = config_.tensors;
    task.tensor_dtype = config_.tensor_dtype;
    task.priority = config_.priority;
    task.sample = config_.sample;
    task.deadline = frame->deadline;
    task.arrived = frame->arrived;
    task.waiting_since = frame->waiting_since;
    task.done = [self = shared_from_this(), frame](absl::StatusOr<InferResult> result) {
      self->OnResult(*frame, std::move(result));
    };
    const uint64_t ticket = options_.submit(std::move(task));
    absl::MutexLock lock(&mutex_);
    frame->ticket = ticket;
  } catch (const std::bad_alloc&) {
    absl::MutexLock lock(&mutex_);
    if (frame->state == Frame::State::kSubmitted) EndOutOfMemory(*frame);
  }
}

StreamSession::FramePtr StreamSession::NextToCancel() {
  for (const FramePtr& frame : frames_) {
    const bool may_cancel =
        frame->state == Frame::State::kSubmitted && frame->ticket.has_value() && !frame->is_cancel_tried;
    if (may_cancel && (frame->is_superseded || cancelled_.has_value())) {
      frame->is_cancel_tried = true;
      return frame;
    }
  }
  return nullptr;
}

void StreamSession::CancelFrame(const FramePtr& frame) {
  uint64_t ticket = 0;
  std::optional<absl::Status> why;
  {
    absl::MutexLock lock(&mutex_);
    ticket = *frame->ticket;
    why = cancelled_;
  }
  try {
    options_.cancel(ticket, DropReasonOf(why.value_or(Superseded())).value_or(DropReason::kCancelled));
  } catch (const std::bad_alloc&) {  // then the frame runs
  }
}

StreamSession::FramePtr StreamSession::NextToAnswer() {
  const auto ended = std::find_if(frames_.begin(), frames_.end(),
                                  [](const FramePtr& frame) { return frame->state == Frame::State::kEnded; });
  if (ended == frames_.end()) return nullptr;
  if (config_.policy == StreamPolicy::kQueue && ended != frames_.begin()) return nullptr;
  FramePtr frame = *ended;
  frames_.erase(ended);
  return frame;
}

void StreamSession::AnswerFrame(const FramePtr& frame) {
  KeepSweeps();
  // Destroys the function after the call: its captures are the caller's and must not live on in the frame.
  const auto done = std::exchange(frame->done, nullptr);
  done(std::move(frame->result), frame->num_sweeps);
}

}  // namespace voxserve
