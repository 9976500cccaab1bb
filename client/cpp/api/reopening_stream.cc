#include "client/cpp/api/reopening_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/api/error.h"
#include "client/cpp/api/frame_encoding.h"
#include "engine/base/steady_time.h"

namespace voxserve::client {
namespace {

// A frame that was under way when this many connections broke is not sent again, since the frame itself may make the
// server fail.
constexpr int kMaxBreaks = 3;

// A server drops the parts of a frame whose id is one of the last frames that came in parts. It remembers this many.
constexpr size_t kMaxIdsInParts = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<ReopeningStream>> ReopeningStream::Open(std::shared_ptr<Channels> channels,
                                                                       const StreamOptions& options,
                                                                       Callbacks callbacks) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  std::unique_ptr<ReopeningStream> stream(new ReopeningStream(std::move(channels), options, std::move(callbacks)));
  {
    absl::MutexLock lock(&stream->mutex_);
    if (absl::Status status = stream->Begin(); !status.ok()) return status;
    if (stream->reopening_.is_wanted()) stream->thread_ = std::thread(&ReopeningStream::Run, stream.get());
  }
  return stream;
}

ReopeningStream::ReopeningStream(std::shared_ptr<Channels> channels, const StreamOptions& options, Callbacks callbacks)
    : channels_(std::move(channels)),
      options_(options),
      callbacks_(std::move(callbacks)),
      deadline_(SteadyNow() + options.timeout),
      reopening_(options.reopen_for) {}

ReopeningStream::~ReopeningStream() {
  Cancel();
  if (thread_.joinable()) thread_.join();
}

absl::Status ReopeningStream::Begin() {
  StreamOptions options = options_;
  if (deadline_ < absl::InfiniteFuture()) {
    options.timeout = std::max(absl::Milliseconds(1), deadline_ - SteadyNow());
  }
  std::vector<StreamCall::Frame> frames;
  for (Kept& kept : kept_) {
    frames.insert(frames.end(), kept.parts.begin(), kept.parts.end());
    kept.is_in_call = true;
  }
  is_going_away_ = false;
  ended_call_.reset();
  reopening_.Begin(SteadyNow());
  absl::StatusOr<std::unique_ptr<StreamCall>> call = StreamCall::Open(
      channels_, options, reopening_.is_wanted() ? CallbacksOfCall() : callbacks_.of_call, std::move(frames));
  if (!call.ok()) return call.status();
  call_ = *std::move(call);
  if (sends_are_closed_) call_->CloseSends();
  return absl::OkStatus();
}

StreamCall::Callbacks ReopeningStream::CallbacksOfCall() {
  return {.on_result = [this](StreamCall::Outcome outcome) { TakeResult(std::move(outcome)); },
          .on_going_away =
              [this] {
                absl::MutexLock lock(&mutex_);
                is_going_away_ = true;
              },
          .on_end =
              [this](absl::Status status) {
                absl::MutexLock lock(&mutex_);
                ended_call_ = std::move(status);
              }};
}

absl::Status ReopeningStream::Send(StreamCall::Frame frame) {
  absl::MutexLock lock(&mutex_);
  absl::Status status = SendNow(std::move(frame));
  if (status.ok()) begun_.reset();
  return status;
}

absl::Status ReopeningStream::SendPart(StreamCall::Frame part, bool is_last) {
  absl::MutexLock lock(&mutex_);
  const uint64_t frame_id = part.frame_id;
  const bool begins = !begun_ || begun_->frame_id != frame_id;
  if (begins && std::find(ids_in_parts_.begin(), ids_in_parts_.end(), frame_id) != ids_in_parts_.end()) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("frame ", frame_id, " is one of the last ",
                                                              kMaxIdsInParts, " frames that were sent in parts")),
                      kDuplicateFrame);
  }
  part.form = FrameForm::kInParts;
  part.index = begins ? 0 : begun_->num_parts;
  part.parts.insert(part.parts.begin(), EncodePartHeader(frame_id, part.index, is_last, part.options));
  const uint32_t num_parts = part.index + 1;
  const absl::Status status = begins ? SendNow(std::move(part)) : SendNextPart(std::move(part));
  if (!status.ok()) return status;
  if (begins) ids_in_parts_.push_back(frame_id);
  if (ids_in_parts_.size() > kMaxIdsInParts) ids_in_parts_.pop_front();
  begun_.reset();
  if (!is_last) begun_ = Begun{frame_id, num_parts};
  return status;
}

absl::Status ReopeningStream::SendNextPart(StreamCall::Frame part) {
  if (!reopening_.is_wanted()) return call_->Send(std::move(part));
  if (sends_are_closed_ || is_cancelled_ || has_ended_) return StreamCall::EndedError();
  const auto kept =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& other) { return other.frame_id == part.frame_id; });
  if (kept == kept_.end()) return absl::OkStatus();  // the frame has its result
  kept->parts.push_back(part);
  kept->sent = SteadyNow();
  // If the call has ended, the next one sends all parts.
  if (kept->is_in_call && call_ != nullptr) call_->Send(std::move(part)).IgnoreError();
  return absl::OkStatus();
}

absl::Status ReopeningStream::SendNow(StreamCall::Frame frame) {
  if (!reopening_.is_wanted()) return call_->Send(std::move(frame));
  if (absl::Status status = StreamCall::CheckFrame(options_, frame); !status.ok()) return status;
  if (sends_are_closed_ || is_cancelled_ || has_ended_) return StreamCall::EndedError();
  const uint64_t frame_id = frame.frame_id;
  const auto is_this = [&](const Kept& kept) { return kept.frame_id == frame_id; };
  if (std::any_of(kept_.begin(), kept_.end(), is_this)) return StreamCall::DuplicateError(frame_id);
  if (call_ != nullptr && !ended_call_ && !is_going_away_) {
    const absl::Status status = call_->Send(frame);
    if (status.ok()) kept_.push_back({frame_id, {std::move(frame)}, SteadyNow(), /*is_in_call=*/true});
    const std::string reason = ErrorReason(status);
    if (reason != kStreamEnded && reason != StreamCall::kDraining) return status;
  }
  // The frame waits for the next call.
  const auto num_waiting = std::count_if(kept_.begin(), kept_.end(), [](const Kept& kept) { return !kept.is_in_call; });
  if (options_.policy == StreamPolicy::kQueue && num_waiting >= options_.max_unsent_frames) {
    return StreamCall::TooManyUnsentError(static_cast<size_t>(num_waiting));
  }
  kept_.push_back({frame_id, {std::move(frame)}, SteadyNow()});
  SupersedeWaiting();
  return absl::OkStatus();
}

void ReopeningStream::CloseSends() {
  absl::MutexLock lock(&mutex_);
  sends_are_closed_ = true;
  // A call whose server is going away ends by itself, and the next call sends the frames that it leaves unanswered.
  if (call_ != nullptr && !is_going_away_) call_->CloseSends();
}

void ReopeningStream::Cancel() {
  absl::MutexLock lock(&mutex_);
  is_cancelled_ = true;
  changed_.Signal();
  if (call_ != nullptr) call_->Cancel();
}

void ReopeningStream::TakeResult(StreamCall::Outcome outcome) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.frame_id == outcome.frame_id; });
    if (outcome.fate != StreamCall::Fate::kAnswered) {
      const bool may_be_the_cause =
          outcome.fate == StreamCall::Fate::kUnderWay && ErrorReason(outcome.response.status()) == kConnectionLost;
      found->num_breaks += may_be_the_cause;
      return;  // the frame is sent again, or fails in PrepareNext
    }
    outcome.sent = found->sent;
    kept_.erase(found);
    if (outcome.response.ok() || IsFromServer(outcome.response.status())) reopening_.Hear();
  }
  Deliver(std::move(outcome));
}

void ReopeningStream::Run() {
  while (true) {
    absl::Status status;
    std::unique_ptr<StreamCall> old;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](ReopeningStream* self)
               ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->ended_call_.has_value() || !self->failed_.empty(); },
          this));
      if (ended_call_) {
        status = *ended_call_;
        old = std::move(call_);
      }
    }
    if (old == nullptr) {
      DeliverFailed();
      continue;
    }
    old.reset();  // waits for its last callback, which needs the mutex
    const std::optional<absl::Duration> delay = PrepareNext(status);
    DeliverFailed();
    if (!delay) return Finish(std::move(status));
    if (!Pause(*delay)) return Finish(std::move(status));
    {
      absl::MutexLock lock(&callback_mutex_);
      if (callbacks_.on_reopen) callbacks_.on_reopen(status);
    }
    {
      absl::MutexLock lock(&mutex_);
      status = Begin();
      if (is_cancelled_ && call_ != nullptr) call_->Cancel();
    }
    if (!status.ok()) return Finish(std::move(status));
  }
}

std::optional<absl::Duration> ReopeningStream::PrepareNext(absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (is_cancelled_) return std::nullopt;
  if (sends_are_closed_ && kept_.empty()) return std::nullopt;
  const std::optional<absl::Duration> delay = reopening_.Delay(status, SteadyNow());
  if (!delay) return std::nullopt;
  if (SteadyNow() + *delay >= deadline_) {
    status = WithReason(
        absl::DeadlineExceededError(absl::StrCat("no server took the stream on within its timeout of ",
                                                 absl::FormatDuration(options_.timeout), ": ", status.message())),
        kClientTimeout);
    return std::nullopt;
  }
  std::vector<Kept> again;
  for (Kept& kept : kept_) {
    kept.is_in_call = false;
    if (kept.num_breaks < kMaxBreaks) {
      again.push_back(std::move(kept));
    } else {
      Fail(std::move(kept), status);
    }
  }
  kept_ = std::move(again);
  SupersedeWaiting();
  return delay;
}

bool ReopeningStream::Pause(absl::Duration delay) {
  const absl::Time end = SteadyNow() + delay;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      while (!is_cancelled_ && failed_.empty() && SteadyNow() < end) changed_.WaitUntil(&mutex_, end);
      if (is_cancelled_) return false;
      if (failed_.empty()) return true;
    }
    DeliverFailed();
  }
}

void ReopeningStream::Finish(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    has_ended_ = true;
    if (is_cancelled_ && absl::IsUnavailable(status)) status = absl::CancelledError("the stream was cancelled");
    // The stream has all its answers, so it does not matter how the call ended.
    if (sends_are_closed_ && kept_.empty() && absl::IsUnavailable(status)) status = absl::OkStatus();
    if (status.ok() && !kept_.empty()) status = Malformed("a stream that ended before its sends were closed");
    std::sort(kept_.begin(), kept_.end(), [](const Kept& a, const Kept& b) { return a.frame_id < b.frame_id; });
    for (Kept& kept : kept_) Fail(std::move(kept), status);
    kept_.clear();
  }
  DeliverFailed();
  absl::MutexLock lock(&callback_mutex_);
  if (callbacks_.of_call.on_end) callbacks_.of_call.on_end(std::move(status));
}

void ReopeningStream::Fail(Kept kept, absl::Status status) {
  failed_.push_back({.frame_id = kept.frame_id, .response = std::move(status)});
  changed_.Signal();
}

void ReopeningStream::SupersedeWaiting() {
  if (options_.policy != StreamPolicy::kLatest || kept_.empty()) return;
  const auto newest = kept_.end() - 1;
  const auto old = std::stable_partition(kept_.begin(), newest, [](const Kept& kept) { return kept.is_in_call; });
  for (auto kept = old; kept != newest; ++kept) Fail(std::move(*kept), StreamCall::SupersededError());
  kept_.erase(old, newest);
}

void ReopeningStream::DeliverFailed() {
  std::vector<StreamCall::Outcome> failed;
  {
    absl::MutexLock lock(&mutex_);
    failed.swap(failed_);
  }
  for (StreamCall::Outcome& outcome : failed) Deliver(std::move(outcome));
}

void ReopeningStream::Deliver(StreamCall::Outcome outcome) {
  absl::MutexLock lock(&callback_mutex_);
  if (callbacks_.of_call.on_result) callbacks_.of_call.on_result(std::move(outcome));
}

}  // namespace voxserve::client
