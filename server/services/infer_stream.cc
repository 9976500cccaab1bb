#include "server/services/infer_stream.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/streams/stream_session.h"
#include "server/codec/codec.h"
#include "server/codec/grpc_status.h"
#include "server/codec/message_parser.h"
#include "server/services/inference_service.h"
#include "server/services/request_telemetry.h"
#include "server/services/stream_config.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {
namespace {

// The most answers of a stream that wait for its client to read. With more the stream reads no frames.
constexpr size_t kMaxUnsentAnswers = 8;

absl::Status BadStream(const std::string& message) {
  return WithReason(absl::InvalidArgumentError(message), error_reason::kBadStream);
}

// One InferStream. The service owns it until OnDone, gRPC's last call; every frame keeps it until the frame is
// answered.
//
// gRPC may call back within any Start... or Finish. So these are called without the lock, by the thread that set the
// flag for that operation.
class InferStreamCall final : public Call {
 public:
  InferStreamCall(const ServiceParts* parts, grpc::CallbackServerContext* context)
      : Call(parts, context, CallKind::kStream) {}

  void Start() override {
    {
      absl::MutexLock lock(&mutex_);
      last_sign_ = absl::Now();
    }
    Advance();
  }

  void Drain() override {
    ShortenAnswerTimer();
    v1::InferStreamResponse message;
    message.mutable_going_away();
    const grpc::ByteBuffer going_away = Serialize(message).value_or(grpc::ByteBuffer());
    std::shared_ptr<StreamSession> session;
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      draining_ = true;
      end_ = DrainingError();
      unsent_.push_back({.message = going_away, .held = HeldBytes()});
      session = session_;
    }
    if (session != nullptr) session->StartDraining();
    Advance();
  }

  // ok = false: the client has half-closed, or it is gone and OnCancel is called.
  void OnReadDone(bool ok) override {
    if (ok) parts().on_message(peer(), static_cast<int64_t>(request_.Length()), /*is_first=*/!has_message_);
    has_message_ = has_message_ || ok;
    if (ok && !Guard([this] { OnMessage(); })) EndOutOfMemory();
    request_.Clear();
    {
      absl::MutexLock lock(&mutex_);
      is_reading_ = false;
      last_sign_ = absl::Now();
      if (!ok) {
        has_read_all_ = true;
        if (!end_.has_value()) end_ = absl::OkStatus();
      }
    }
    Advance();
  }

  // ok = false: the client is gone.
  void OnWriteDone(bool ok) override {
    StopAnswerTimer();
    sending_ = Outgoing();
    {
      absl::MutexLock lock(&mutex_);
      is_writing_ = false;
      last_sign_ = absl::Now();
      if (!ok) DropAnswers();
    }
    Advance();
  }

  void OnCancel() override {
    CountCancel();
    const absl::Status why = WhyCancelled();
    std::shared_ptr<StreamSession> session;
    {
      absl::MutexLock lock(&mutex_);
      if (is_finished_) return;
      if (!end_.has_value() || end_->ok()) end_ = why;
      DropAnswers();
      session = session_;
    }
    if (session != nullptr) session->Cancel(why);
    Advance();
  }

 private:
  struct Outgoing {
    grpc::ByteBuffer message;
    HeldBytes held;
  };

  void OnClosed() override {
    if (!has_message_) CountUseless();
    absl::MutexLock lock(&mutex_);
    parts().timers->Clear(timer_);
    if (session_ == nullptr) return;
    parts().metrics->OnStreamClosed(model_);
    const std::optional<int64_t> left_out = parts().log_limiter->Admit("stream ended");
    if (!left_out.has_value()) return;
    Log(LogLevel::kInfo, "stream ended",
        {{"model", Clipped(model_)},
         {"frames", num_frames_},
         {"answered", num_ok_},
         {"code", absl::StatusCodeToString(end_->code())},
         {"reason", ReasonOf(*end_)},
         {"seconds", absl::ToDoubleSeconds(absl::Now() - began())},
         {"peer", source()},
         {"left_out", *left_out}});
  }

  std::shared_ptr<InferStreamCall> self() { return std::static_pointer_cast<InferStreamCall>(shared_from_this()); }

  RequestTelemetry TelemetryOf(std::string request_id) {
    absl::MutexLock lock(&mutex_);
    return RequestTelemetry({.model = model_,
                             .version = version_,
                             .request_id = std::move(request_id),
                             .peer = source(),
                             .client = client()},
                            parts());
  }

  // ---- incoming messages: called from OnReadDone alone

  void OnMessage() {
    absl::StatusOr<HeldBytes> held = HoldMessage(static_cast<int64_t>(request_.Length()), 0);
    if (!held.ok()) return OnBadMessage(held.status(), FrameIdOf(request_));
    v1::InferStreamRequest message;
    HostBuffer data;
    const BufferLife life = has_sweeps_ ? BufferLife::kStream : BufferLife::kRequest;
    const auto allocate = [this, life](int64_t size) { return parts().engine->AllocateCloud(size, life); };
    absl::Status status = ParseStreamRequest(request_, allocate, &message, &data);
    request_.Clear();
    if (status.ok()) {
      const int64_t bytes = static_cast<int64_t>(message.SpaceUsedLong()) + data.size();
      absl::StatusOr<HeldBytes> parsed = HoldMessage(bytes, held->bytes());
      status = parsed.status();
      held = std::move(parsed);
    }
    if (!status.ok()) return OnBadMessage(status, message.frame().frame_id());
    switch (message.request_case()) {
      case v1::InferStreamRequest::kConfig:
        return OnConfig(message.config());
      case v1::InferStreamRequest::kFrame:
        return OnFrame(std::move(*message.mutable_frame()), std::move(data), *std::move(held));
      case v1::InferStreamRequest::REQUEST_NOT_SET:
        return Fail(BadStream("a message has neither a config nor a frame"));
    }
  }

  // Holds the bytes of a message. in_place_of: bytes already held for it.
  absl::StatusOr<HeldBytes> HoldMessage(int64_t bytes, int64_t in_place_of) {
    // Counts out the frames that this one supersedes. Otherwise the stream would be stuck with its older frames.
    if (session_of_reader_ != nullptr) in_place_of += session_of_reader_->BytesAheadOfNext();
    return parts().bytes->Hold(ByteKind::kFrame, client(), bytes, in_place_of);
  }

  // Answers a message that cannot be parsed as a frame with an error. Before the config there are no frames, so the
  // error ends the stream.
  void OnBadMessage(const absl::Status& why, uint64_t frame_id) {
    if (ReasonOf(why) == error_reason::kMalformed) parts().metrics->OnCallEndedEarly(error_reason::kMalformed);
    if (session_of_reader_ == nullptr) return Fail(why);
    PushFrame(frame_id, StreamFrame{.cloud = why}, HeldBytes(), TelemetryOf(absl::StrCat(frame_id)));
  }

  void OnConfig(const v1::StreamConfig& message) {
    if (session_of_reader_ != nullptr) return Fail(BadStream("the stream has a config already"));
    absl::StatusOr<StreamSession::Config> config = DecodeStreamConfig(message);
    Engine* const engine = parts().engine;
    absl::Status status = config.status();
    if (status.ok()) {
      const absl::StatusOr<ModelVersionInfo> model = engine->GetModel(config->model, config->version);
      status = model.ok() ? CheckStreamConfig(*model, *config) : model.status();
      // First: it says less.
      const absl::Status allowed = CheckMayInfer(caller(), *engine, config->model, config->version, config->priority);
      if (!allowed.ok()) status = allowed;
    }
    has_sweeps_ = message.has_sweeps();
    {
      absl::MutexLock lock(&mutex_);
      model_ = message.model();
      version_ = message.version();
    }
    if (!status.ok()) return Fail(status);

    config->client = client();
    config->client_share = caller().share();
    session_of_reader_ = StreamSession::Create(
        *std::move(config),
        {.submit = [engine](InferTask task) { return engine->Submit(std::move(task)); },
         .cancel = [engine](uint64_t ticket, DropReason reason) { return engine->Cancel(ticket, reason); },
         .observer = parts().metrics});
    parts().metrics->OnStreamOpened(message.model());
    bool is_draining = false;
    {
      absl::MutexLock lock(&mutex_);
      session_ = session_of_reader_;
      is_draining = draining_;
    }
    if (is_draining) session_of_reader_->StartDraining();
  }

  void OnFrame(v1::StreamFrame message, HostBuffer data, HeldBytes held) {
    if (session_of_reader_ == nullptr) return Fail(BadStream("the first message must be the stream's config"));
    RequestTelemetry telemetry = TelemetryOf(absl::StrCat(message.frame_id()));
    StreamFrame frame;
    frame.reset_sweeps = message.reset_sweeps();
    if (message.has_pose()) frame.pose = DecodePose(message.pose());
    if (message.has_cloud()) {
      frame.cloud = telemetry.Decode(message.mutable_cloud(), std::move(data));
    } else {
      frame.cloud = WithReason(absl::InvalidArgumentError("the frame has no cloud"), error_reason::kMissingCloud);
    }
    if (has_sweeps_ && frame.cloud.ok()) {
      absl::StatusOr<HeldBytes> sweep = HoldSweep(held.bytes());
      if (sweep.ok()) {
        frame.reservation = std::make_shared<HeldBytes>(*std::move(sweep));
      } else {
        frame.cloud = sweep.status();
      }
    }
    if (!frame.cloud.ok()) held.Release();
    frame.stamp = telemetry.stamp();
    PushFrame(message.frame_id(), std::move(frame), std::move(held), std::move(telemetry));
  }

  // Holds the frame's cloud as a sweep. If there is no room, frees this stream's own sweeps, which no one else would
  // free.
  absl::StatusOr<HeldBytes> HoldSweep(int64_t bytes) {
    ByteLimits& limits = *parts().bytes;
    absl::StatusOr<HeldBytes> held = limits.Hold(ByteKind::kSweep, client(), bytes);
    if (held.ok()) return held;
    held = limits.Hold(ByteKind::kSweep, client(), bytes, session_of_reader_->SweepBytes());
    if (held.ok()) session_of_reader_->ForgetSweeps();
    return held;
  }

  // Hands the frame to the session, which answers it exactly once.
  void PushFrame(uint64_t frame_id, StreamFrame frame, HeldBytes held, RequestTelemetry telemetry) {
    {
      absl::MutexLock lock(&mutex_);
      if (is_finished_) return;
      ++num_unanswered_;
      ++num_frames_;
    }
    const bool is_taken = Guard([&] {
      // held is shared, since a std::function must be copyable.
      frame.done = [self = self(), telemetry = std::move(telemetry), frame_id,
                    held = std::make_shared<HeldBytes>(std::move(held))](absl::StatusOr<InferResult> result,
                                                                         int num_sweeps) mutable {
        held->Release();
        self->OnAnswer(frame_id, std::move(result), num_sweeps, &telemetry);
      };
      session_of_reader_->Push(std::move(frame));
    });
    if (is_taken) return;
    EndOutOfMemory();
    absl::MutexLock lock(&mutex_);
    --num_unanswered_;
  }

  // ---- outgoing messages

  void OnAnswer(uint64_t frame_id, absl::StatusOr<InferResult> result, int num_sweeps, RequestTelemetry* telemetry) {
    Outgoing outgoing;
    bool is_ok = result.ok();
    const bool has_room =
        Guard([&] { outgoing = Encode(caller(), frame_id, std::move(result), num_sweeps, telemetry, &is_ok); });
    if (!has_room) {
      is_ok = false;
      // Small; where even that has no room, the stream ends without it.
      if (!Guard([&] { outgoing = Encode(caller(), frame_id, OutOfMemoryError(), 0, telemetry, &is_ok); })) {
        EndOutOfMemory();
      }
    }
    const bool is_kept = Guard([&] {
      absl::MutexLock lock(&mutex_);
      if (!is_broken_ && outgoing.message.Valid()) unsent_.push_back(std::move(outgoing));
    });
    if (!is_kept) EndOutOfMemory();
    {
      absl::MutexLock lock(&mutex_);
      if (is_ok && is_kept) ++num_ok_;
      --num_unanswered_;
    }
    Advance();
  }

  // The frame's answer, or its error: is_ok says which of them it has become.
  static Outgoing Encode(const Caller& caller, uint64_t frame_id, absl::StatusOr<InferResult> result, int num_sweeps,
                         RequestTelemetry* telemetry, bool* is_ok) {
    v1::InferStreamResponse answer;
    v1::FrameResult& message = *answer.mutable_result();
    message.set_frame_id(frame_id);
    absl::Status status = caller.Narrowed(result.status());
    Outgoing outgoing;
    if (result.ok()) {
      absl::StatusOr<HeldBytes> held = telemetry->Answer(*std::move(result), message.mutable_response());
      status = held.status();
      if (held.ok()) outgoing.held = *std::move(held);
    } else {
      telemetry->Fail(status);
    }
    *is_ok = status.ok();
    if (status.ok()) {
      message.set_num_sweeps(static_cast<uint32_t>(num_sweeps));
    } else {
      message.clear_response();
      *message.mutable_status() = ToRpcStatus(status);
    }
    absl::StatusOr<grpc::ByteBuffer> bytes = Serialize(answer);
    if (bytes.ok()) outgoing.message = *std::move(bytes);
    return outgoing;
  }

  // Drops unsent answers, since the client is gone.
  void DropAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    is_broken_ = true;
    unsent_.clear();
  }

  // ---- the stream's end

  // Ends the stream when the frames that it took are answered. The first end counts, in the metric before any client
  // can see it.
  void Fail(const absl::Status& whole_status) {
    const absl::Status status = caller().Narrowed(whole_status);
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      if (ReasonOf(status) == error_reason::kStreamIdle) parts().metrics->OnCallEndedEarly(error_reason::kStreamIdle);
      end_ = status;
    }
    TelemetryOf("").Fail(status);
    Advance();
  }

  // Ends the stream for lack of memory. If even the error cannot be made, the stream ends with its earlier status.
  void EndOutOfMemory() {
    Guard([this] { Fail(OutOfMemoryError()); });
  }

  // ---- operations in progress

  // Starts every operation that can be started, until there is none.
  void Advance() {
    while (StartNext()) continue;
  }

  // Starts what can be started. Returns true if the caller must look again for what became possible meanwhile.
  bool StartNext() {
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
      // A read may be in progress, but no other thread may be about to start one after Finish.
      const bool is_idle = num_unanswered_ == 0 && !is_writing_ && num_starting_reads_ == 0;
      if (end_.has_value() && is_idle) is_finished_ = may_finish = true;
      if (!is_finished_) SetTimers();
    }
    if (may_finish) {
      StartAnswerTimer(0);
      Finish(ToGrpcStatus(*end_, context()));
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

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_reading_ || has_read_all_ || unsent_.size() >= kMaxUnsentAnswers) return false;
    // A draining server reads on while it has frames to answer, so that clients get an error for each frame they send.
    if (end_.has_value() && !(draining_ && num_unanswered_ > 0)) return false;
    return session_ == nullptr || session_->HasRoom();
  }

  // ---- time

  // Returns the time at which the stream will have been silent for too long; InfiniteFuture while a frame is
  // unanswered, or after the client has ended its side.
  absl::Time SilenceEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool is_busy = num_unanswered_ > 0 || is_writing_ || !unsent_.empty();
    if (is_busy || end_.has_value()) return absl::InfiniteFuture();
    return session_ == nullptr ? began() + parts().times.config : last_sign_ + parts().times.silence;
  }

  // Sets the timer for the session's next expiry (of a waiting frame, or of sweeps) or the end of the allowed silence,
  // whichever is first.
  void SetTimers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time expiry = session_ == nullptr ? absl::InfiniteFuture() : session_->NextExpiry();
    const absl::Time next = std::min(expiry, SilenceEnds());
    if (next >= timer_time_) return;
    parts().timers->Clear(timer_);
    timer_ = SetTimer(next, &InferStreamCall::OnTimer);
    timer_time_ = timer_ == 0 ? absl::InfiniteFuture() : next;
  }

  void OnTimer() {
    std::shared_ptr<StreamSession> session;
    bool is_silent = false;
    {
      absl::MutexLock lock(&mutex_);
      timer_time_ = absl::InfiniteFuture();
      session = session_;
      is_silent = SilenceEnds() <= absl::Now();
    }
    if (is_silent) {
      Fail(WithReason(
          absl::DeadlineExceededError(
              session == nullptr ? absl::StrCat("no config came within ", absl::FormatDuration(parts().times.config))
                                 : absl::StrCat("no frame came within ", absl::FormatDuration(parts().times.silence))),
          error_reason::kStreamIdle));
    }
    if (session != nullptr) session->ExpireDue();
    Advance();
  }

  // Used only by the thread that handles a message that was read.
  grpc::ByteBuffer request_;
  bool has_message_ = false;  // a message has arrived
  bool has_sweeps_ = false;
  std::shared_ptr<StreamSession> session_of_reader_;

  Outgoing sending_;  // being sent: owned by the thread that set is_writing_

  absl::Mutex mutex_;
  std::shared_ptr<StreamSession> session_ ABSL_GUARDED_BY(mutex_);  // null before the config
  std::deque<Outgoing> unsent_ ABSL_GUARDED_BY(mutex_);
  Timers::Id timer_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time timer_time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // when timer_ is due
  absl::Time last_sign_ ABSL_GUARDED_BY(mutex_);                            // when a message was last received or sent
  std::string model_ ABSL_GUARDED_BY(mutex_);                               // from the config, as is version_
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;  // frames
  int64_t num_frames_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_ok_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_starting_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that are about to call StartRead, or in it
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing can be sent any more
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Set and changed under mutex_ until is_finished_ is set; constant afterwards.
  std::optional<absl::Status> end_;
};

}  // namespace

std::shared_ptr<Call> MakeInferStream(const ServiceParts* parts, grpc::CallbackServerContext* context) {
  return std::make_shared<InferStreamCall>(parts, context);
}

}  // namespace voxserve
