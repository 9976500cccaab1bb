#include "client/cpp/api/stream_call.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/api/error.h"
#include "client/cpp/api/frame_encoding.h"
#include "engine/base/steady_time.h"
#include "voxserve/v1/inference.grpc.pb.h"  // the templates that serialise and parse messages

namespace voxserve::client {
namespace {

constexpr char kMethod[] = "/voxserve.v1.InferenceService/InferStream";

}  // namespace

absl::StatusOr<std::unique_ptr<StreamCall>> StreamCall::Open(std::shared_ptr<Channels> channels,
                                                             const StreamOptions& options, Callbacks callbacks,
                                                             std::vector<Frame> frames) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  std::unique_ptr<StreamCall> call(
      new StreamCall(std::move(channels), options, std::move(callbacks), std::move(frames)));
  call->Start();
  return call;
}

StreamCall::StreamCall(std::shared_ptr<Channels> channels, const StreamOptions& options, Callbacks callbacks,
                       std::vector<Frame> frames)
    : channels_(std::move(channels)),
      channel_(channels_->all()[channels_->NextIndex()]),
      options_(options),
      callbacks_(std::move(callbacks)),
      context_(*channels_, options.timeout) {
  for (Frame& frame : frames) {
    Awaited& awaited = awaited_[frame.frame_id];
    awaited.num_points += frame.num_points;
    awaited.sent = SteadyNow();
    unsent_.push_back(std::move(frame));
  }
}

absl::Status StreamCall::CheckFrame(const StreamOptions& options, const Frame& frame) {
  if (frame.form == FrameForm::kInParts) return absl::OkStatus();  // another part may have it
  if (!options.sweeps || frame.options.pose) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("frame ", frame.frame_id, " has no pose, which sweeps need"));
}

absl::Status StreamCall::EndedError() {
  return WithReason(absl::FailedPreconditionError("the stream takes no more frames: it has ended, or sends are closed"),
                    kStreamEnded);
}

absl::Status StreamCall::DuplicateError(uint64_t frame_id) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("frame ", frame_id, " waits for its answer already")),
                    kDuplicateFrame);
}

absl::Status StreamCall::TooManyUnsentError(size_t num_unsent) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(num_unsent, " frames wait to be sent")), kTooManyUnsent);
}

absl::Status StreamCall::SupersededError() {
  return WithReason(absl::AbortedError("a newer frame came before this one was sent"), kSuperseded);
}

StreamCall::~StreamCall() {
  context_.TryCancel();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&is_done_));
}

void StreamCall::Start() {
  // The headers go in one operation with the first message. If the connection has broken before gRPC sends the headers,
  // gRPC begins the call anew by itself (a transparent retry, also without a retry policy). It then sends again what
  // failed before. An operation of its own for the first message could have reported its failure by then: the call
  // would go on, although OnWriteDone(false) has said that nothing more can be written.
  context_.set_initial_metadata_corked(true);
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel_);
  stub.PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(), this);
  absl::MutexLock lock(&mutex_);
  AddHold();
  has_hold_ = true;
  Write({EncodeConfig(options_)});
  StartRead(&answer_);
  StartCall();
}

absl::Status StreamCall::Send(Frame frame) {
  if (absl::Status status = CheckFrame(options_, frame); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (sends_are_closed_ || !has_hold_) return EndedError();
  const auto awaited = awaited_.find(frame.frame_id);
  if (frame.index > 0) {
    if (awaited == awaited_.end()) return absl::OkStatus();
    awaited->second.num_points += frame.num_points;
    awaited->second.sent = SteadyNow();
  } else {
    if (is_going_away_) {
      return WithReason(absl::UnavailableError("the server is going away and takes no more frames"), kDraining);
    }
    if (awaited != awaited_.end()) return DuplicateError(frame.frame_id);
    const auto num_unsent =
        std::count_if(unsent_.begin(), unsent_.end(), [](const Frame& other) { return other.index == 0; });
    if (options_.policy == StreamPolicy::kQueue && num_unsent >= options_.max_unsent_frames) {
      return TooManyUnsentError(static_cast<size_t>(num_unsent));
    }
    awaited_[frame.frame_id] = {frame.num_points, SteadyNow()};
    if (options_.policy == StreamPolicy::kLatest) SupersedeUnsent(frame);
  }
  if (is_writing_) {
    unsent_.push_back(std::move(frame));
  } else {
    Write(std::move(frame.parts));
  }
  return absl::OkStatus();
}

void StreamCall::SupersedeUnsent(Frame& frame) {
  // The parts of a frame whose first part has been sent must follow it.
  const auto begin = std::find_if(unsent_.begin(), unsent_.end(), [](const Frame& other) { return other.index == 0; });
  if (begin == unsent_.end()) return;
  // A reset of the older frame must not get lost; the sweeps that it would forget are older than both frames.
  const bool resets = std::any_of(begin, unsent_.end(), [](const Frame& older) { return older.options.reset_sweeps; });
  if (resets && !frame.options.reset_sweeps) {
    frame.options.reset_sweeps = true;
    frame.parts.push_back(EncodeResetSweeps(frame.form));
  }
  awaited_.erase(begin->frame_id);
  superseded_.push_back(begin->frame_id);
  unsent_.erase(begin, unsent_.end());
}

void StreamCall::CloseSends() {
  absl::MutexLock lock(&mutex_);
  if (sends_are_closed_) return;
  sends_are_closed_ = true;
  if (is_writing_ || !has_hold_) return;
  StartWritesDone();
  EndWrites();
}

void StreamCall::Write(std::vector<grpc::Slice> parts) {
  is_writing_ = true;
  message_ = grpc::ByteBuffer(parts.data(), parts.size());
  StartWrite(&message_);
}

void StreamCall::EndWrites() {
  if (!has_hold_) return;
  has_hold_ = false;
  RemoveHold();
}

void StreamCall::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    is_writing_ = false;
    if (!ok || !has_hold_) {
      EndWrites();
    } else if (!unsent_.empty()) {
      Frame next = std::move(unsent_.front());
      unsent_.pop_front();
      Write(std::move(next.parts));
    } else if (sends_are_closed_) {
      StartWritesDone();
      EndWrites();
    }
  }
  DeliverSuperseded();
}

void StreamCall::OnReadDone(bool ok) {
  if (!ok) {
    absl::MutexLock lock(&mutex_);
    EndWrites();
    return;
  }
  // gRPC parses no answer itself: one that it could not parse would look like the end of the answers, and the call
  // would go on until the server ends it.
  v1::InferStreamResponse response;
  if (!grpc::SerializationTraits<v1::InferStreamResponse>::Deserialize(&answer_, &response).ok()) {
    GiveUp("bytes that are no InferStreamResponse");
  } else {
    if (response.has_result()) TakeResult(response.mutable_result());
    if (response.has_going_away()) TakeGoingAway();
  }
  StartRead(&answer_);
}

void StreamCall::GiveUp(absl::string_view what) {
  absl::MutexLock lock(&mutex_);
  if (violation_.ok()) violation_ = Malformed(what);
  context_.TryCancel();
}

void StreamCall::TakeResult(v1::FrameResult* result) {
  Outcome outcome;
  outcome.frame_id = result->frame_id();
  outcome.num_sweeps = static_cast<int>(result->num_sweeps());
  std::optional<Awaited> awaited;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = awaited_.find(outcome.frame_id);
    if (found != awaited_.end()) {
      awaited = found->second;
      awaited_.erase(found);
    }
  }
  if (!awaited.has_value()) {
    return GiveUp(absl::StrCat("a result for frame ", outcome.frame_id, ", which waits for none"));
  }
  if (result->status().code() != 0) {
    outcome.response = FromRpcStatus(result->status());
  } else {
    outcome.response = std::move(*result->mutable_response());
    outcome.asked = {.num_points = awaited->num_points,
                     .wants_scores = options_.return_scores,
                     .num_sampled = options_.sample ? options_.sample->num_points : 0,
                     .tensors = options_.tensors};
    outcome.sent = awaited->sent;
  }
  Deliver(std::move(outcome));
}

void StreamCall::TakeGoingAway() {
  {
    absl::MutexLock lock(&mutex_);
    if (is_going_away_) return;
    is_going_away_ = true;
  }
  absl::MutexLock lock(&callback_mutex_);
  if (callbacks_.on_going_away) callbacks_.on_going_away();
}

void StreamCall::DeliverSuperseded() {
  std::vector<uint64_t> superseded;
  {
    absl::MutexLock lock(&mutex_);
    superseded.swap(superseded_);
  }
  for (const uint64_t frame_id : superseded) Deliver({frame_id, SupersededError()});
}

void StreamCall::Deliver(Outcome outcome) {
  absl::MutexLock lock(&callback_mutex_);
  if (callbacks_.on_result) callbacks_.on_result(std::move(outcome));
}

void StreamCall::OnDone(const grpc::Status& grpc_status) {
  absl::Status status = channels_->Explain(grpc_status, *channel_, options_.timeout);
  std::vector<std::pair<uint64_t, Fate>> unanswered;
  {
    absl::MutexLock lock(&mutex_);
    if (!violation_.ok()) status = violation_;
    for (const auto& [frame_id, awaited] : awaited_) {
      const bool is_unsent = std::any_of(unsent_.begin(), unsent_.end(), [id = frame_id](const Frame& frame) {
        return frame.frame_id == id && frame.index == 0;
      });
      unanswered.emplace_back(frame_id, is_unsent ? Fate::kUnsent : Fate::kUnderWay);
    }
    awaited_.clear();
    unsent_.clear();
  }
  DeliverSuperseded();
  std::sort(unanswered.begin(), unanswered.end());
  if (status.ok() && !unanswered.empty()) {
    status = Malformed(absl::StrCat("a stream that ended without a result for ", unanswered.size(), " frames"));
  }
  for (const auto& [frame_id, fate] : unanswered) Deliver({.frame_id = frame_id, .response = status, .fate = fate});
  {
    absl::MutexLock lock(&callback_mutex_);
    if (callbacks_.on_end) callbacks_.on_end(std::move(status));
  }
  // Must come last: the call may be gone afterwards.
  absl::MutexLock lock(&mutex_);
  is_done_ = true;
}

}  // namespace voxserve::client
