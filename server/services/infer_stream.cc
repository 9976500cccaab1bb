#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/steady_time.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/streams/stream_session.h"
#include "server/calls/request_codec.h"
#include "server/calls/request_telemetry.h"
#include "server/calls/stream_call.h"
#include "server/calls/unary_request.h"
#include "server/codec/codec.h"
#include "server/codec/grpc_status.h"
#include "server/codec/message_parser.h"
#include "server/services/services.h"
#include "server/services/stream_config.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {
namespace {

// One call of InferStream.
class InferStreamCall final : public StreamCall {
 public:
  using StreamCall::StreamCall;

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

 private:
  void CancelRequests(const absl::Status& why) override {
    std::shared_ptr<StreamSession> session;
    {
      absl::MutexLock lock(&mutex_);
      session = session_;
    }
    if (session != nullptr) session->Cancel(why);
  }

  bool HasRoom() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return session_ == nullptr || session_->HasRoom();
  }

  absl::Time SilenceEnds() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return session_ == nullptr ? began() + environment().times.config : last_sign_ + environment().times.silence;
  }

  absl::Status SilenceError() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string why =
        session_ == nullptr ? absl::StrCat("no config came within ", absl::FormatDuration(environment().times.config))
                            : absl::StrCat("no frame came within ", absl::FormatDuration(environment().times.silence));
    return WithReason(absl::DeadlineExceededError(why), error_reason::kStreamIdle);
  }

  // Returns when a waiting frame or the sweeps expire.
  absl::Time NextExpiry() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return session_ == nullptr ? absl::InfiniteFuture() : session_->NextExpiry();
  }

  void ExpireDue() override {
    std::shared_ptr<StreamSession> session;
    {
      absl::MutexLock lock(&mutex_);
      session = session_;
    }
    if (session != nullptr) session->ExpireDue();
  }

  // A change of the token that does not concern this stream's model and priority does not end it.
  absl::Status CheckStillAllowed(const Caller& now) const override {
    std::string model;
    int64_t version = 0;
    int priority = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (session_ == nullptr) return StreamCall::CheckStillAllowed(now);
      model = model_;
      version = version_;
      priority = priority_;
    }
    const absl::Status allowed = CheckMayInfer(now, *environment().engine, model, version, priority);
    return absl::IsPermissionDenied(allowed) ? allowed : absl::OkStatus();  // the model may be gone for the moment
  }

  void OnFailed(const absl::Status& status) override { TelemetryOf("").Fail(status); }

  void OnStreamClosed() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (session_ == nullptr) return;
    environment().metrics->OnStreamClosed(model_);
    const std::optional<int64_t> left_out = environment().log_limiter->Admit("stream ended");
    if (!left_out.has_value()) return;
    Log(LogLevel::kInfo, "stream ended",
        {{"model", Clipped(model_)},
         {"frames", num_frames_},
         {"answered", num_ok_},
         {"code", absl::StatusCodeToString(end_->code())},
         {"reason", ReasonOf(*end_)},
         {"seconds", absl::ToDoubleSeconds(SteadyNow() - began())},
         TraceIdField(trace()),
         SpanIdField(trace()),
         {"peer", source()},
         {"left_out", *left_out}});
  }

  std::shared_ptr<InferStreamCall> self() { return std::static_pointer_cast<InferStreamCall>(shared_from_this()); }

  RequestTelemetry TelemetryOf(std::string request_id) {
    absl::MutexLock lock(&mutex_);
    return RequestTelemetry({model_, version_, std::move(request_id), source(), trace()}, environment());
  }

  // ---- incoming messages: only OnMessage calls these functions

  void OnMessage(grpc::ByteBuffer* bytes) override {
    absl::StatusOr<HeldBytes> held = HoldMessage(static_cast<int64_t>(bytes->Length()), 0);
    if (!held.ok()) return OnBadMessage(held.status(), FrameIdOf(*bytes));
    v1::InferStreamRequest message;
    HostBuffer data;
    const BufferLife life = has_sweeps_ ? BufferLife::kStream : BufferLife::kRequest;
    const auto allocate = [this, life](int64_t size) { return environment().engine->AllocateCloud(size, life); };
    absl::Status status = ParseStreamRequest(*bytes, allocate, &message, &data);
    bytes->Clear();
    if (status.ok()) {
      const int64_t parsed_bytes = static_cast<int64_t>(message.SpaceUsedLong()) + data.size();
      absl::StatusOr<HeldBytes> parsed = HoldMessage(parsed_bytes, held->bytes());
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
        return Fail(BadStreamError("a message has neither a config nor a frame"));
    }
  }

  // Holds the bytes of a message. in_place_of: bytes already held for it.
  absl::StatusOr<HeldBytes> HoldMessage(int64_t bytes, int64_t in_place_of) {
    // The frames that this one supersedes are not counted. Otherwise a stream at its limit could not replace its older
    // frames.
    if (session_of_reader_ != nullptr) in_place_of += session_of_reader_->BytesAheadOfNext();
    return environment().bytes->Hold(ByteKind::kFrame, client(), bytes, in_place_of);
  }

  // Answers a message that cannot be parsed as a frame with an error. Before the config there are no frames, so the
  // error ends the stream.
  void OnBadMessage(const absl::Status& why, uint64_t frame_id) {
    if (ReasonOf(why) == error_reason::kMalformed) environment().metrics->OnCallEndedEarly(error_reason::kMalformed);
    if (session_of_reader_ == nullptr) return Fail(why);
    PushFrame(frame_id, StreamFrame{.cloud = why}, HeldBytes(), RequestCodec(&environment(), client()),
              TelemetryOf(absl::StrCat(frame_id)));
  }

  void OnConfig(const v1::StreamConfig& message) {
    if (session_of_reader_ != nullptr) return Fail(BadStreamError("the stream has a config already"));
    absl::StatusOr<StreamSession::Config> config = DecodeStreamConfig(message);
    Engine* const engine = environment().engine;
    absl::Status status = config.status();
    if (status.ok()) {
      const absl::StatusOr<ModelVersionInfo> model = engine->GetModel(config->model, config->version);
      status = model.ok() ? CheckStreamConfig(*model, *config) : model.status();
      // This error takes precedence, since it tells less about the model.
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

    const int priority = config->priority;
    config->client = client();
    config->client_share = caller().share();
    session_of_reader_ = StreamSession::Create(
        *std::move(config),
        {.submit = [engine](InferTask task) { return engine->Submit(std::move(task)); },
         .cancel = [engine](uint64_t ticket, DropReason reason) { return engine->Cancel(ticket, reason); },
         .observer = environment().metrics});
    environment().metrics->OnStreamOpened(message.model());
    bool is_draining = false;
    {
      absl::MutexLock lock(&mutex_);
      session_ = session_of_reader_;
      priority_ = priority;
      is_draining = draining_;
    }
    if (is_draining) session_of_reader_->StartDraining();
  }

  void OnFrame(v1::StreamFrame message, HostBuffer data, HeldBytes held) {
    if (session_of_reader_ == nullptr) return Fail(BadStreamError("the first message must be the stream's config"));
    RequestCodec codec(&environment(), client());
    RequestTelemetry telemetry = TelemetryOf(absl::StrCat(message.frame_id()));
    StreamFrame frame;
    frame.reset_sweeps = message.reset_sweeps();
    if (message.has_pose()) frame.pose = DecodePose(message.pose());
    if (message.has_cloud()) {
      telemetry.SetCloud(message.cloud());
      frame.cloud = codec.Decode(message.mutable_cloud(), std::move(data));
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
    PushFrame(message.frame_id(), std::move(frame), std::move(held), std::move(codec), std::move(telemetry));
  }

  // Counts the frame's cloud as a sweep. If the limits have no room for it, frees this stream's own sweeps: nobody else
  // would free them.
  absl::StatusOr<HeldBytes> HoldSweep(int64_t bytes) {
    ByteLimits& limits = *environment().bytes;
    absl::StatusOr<HeldBytes> held = limits.Hold(ByteKind::kSweep, client(), bytes);
    if (held.ok()) return held;
    held = limits.Hold(ByteKind::kSweep, client(), bytes, session_of_reader_->SweepBytes());
    if (held.ok()) session_of_reader_->ForgetSweeps();
    return held;
  }

  // Hands the frame to the session, which answers it exactly once.
  void PushFrame(uint64_t frame_id, StreamFrame frame, HeldBytes held, RequestCodec codec, RequestTelemetry telemetry) {
    const bool has_points = frame.cloud.ok() && frame.cloud->num_points() > 0;
    {
      absl::MutexLock lock(&mutex_);
      if (is_finished_) return;
      BeginRequest(has_points);
      ++num_frames_;
    }
    const bool is_taken = Guard([&] {
      // `held` is in a shared_ptr, since a std::function must be copyable and HeldBytes is not.
      frame.done = [self = self(), codec = std::move(codec), telemetry = std::move(telemetry), frame_id,
                    held = std::make_shared<HeldBytes>(std::move(held))](absl::StatusOr<InferResult> result,
                                                                         int num_sweeps) mutable {
        held->Release();
        self->OnAnswer(frame_id, std::move(result), num_sweeps, &codec, telemetry);
      };
      session_of_reader_->Push(std::move(frame));
    });
    if (is_taken) return;
    EndOutOfMemory();
    absl::MutexLock lock(&mutex_);
    --num_unanswered_;
  }

  // ---- outgoing messages

  void OnAnswer(uint64_t frame_id, absl::StatusOr<InferResult> result, int num_sweeps, RequestCodec* codec,
                const RequestTelemetry& telemetry) {
    Outgoing outgoing;
    bool is_ok = result.ok();
    const bool has_room =
        Guard([&] { outgoing = Encode(caller(), frame_id, std::move(result), num_sweeps, codec, telemetry, &is_ok); });
    if (!has_room) {
      is_ok = false;
      // The error is small. If there is no memory for it either, the stream ends without an answer to this frame.
      if (!Guard([&] { outgoing = Encode(caller(), frame_id, OutOfMemoryError(), 0, codec, telemetry, &is_ok); })) {
        EndOutOfMemory();
      }
    }
    if (KeepAnswer(std::move(outgoing)) && is_ok) {
      absl::MutexLock lock(&mutex_);
      ++num_ok_;
    }
    EndRequest();
  }

  // Returns the message with the frame's result, or with an error. Sets is_ok to false for an error.
  static Outgoing Encode(const Caller& caller, uint64_t frame_id, absl::StatusOr<InferResult> result, int num_sweeps,
                         RequestCodec* codec, const RequestTelemetry& telemetry, bool* is_ok) {
    v1::InferStreamResponse answer;
    v1::FrameResult& message = *answer.mutable_result();
    message.set_frame_id(frame_id);
    absl::Status status = caller.Narrowed(result.status());
    Outgoing outgoing;
    if (result.ok()) {
      absl::StatusOr<HeldBytes> held = codec->Encode(&*result, message.mutable_response());
      status = held.status();
      if (held.ok()) outgoing.held = *std::move(held);
    }
    *is_ok = status.ok();
    if (status.ok()) {
      telemetry.Record(*result, *codec);
      *result = InferResult();  // its memory is free before the message is written
      message.set_num_sweeps(static_cast<uint32_t>(num_sweeps));
    } else {
      telemetry.Fail(status);
      message.clear_response();
      *message.mutable_status() = ToRpcStatus(status);
    }
    absl::StatusOr<grpc::ByteBuffer> bytes = Serialize(answer);
    if (bytes.ok()) outgoing.message = *std::move(bytes);
    return outgoing;
  }

  // Used only by the thread that handles a message that was read.
  bool has_sweeps_ = false;
  std::shared_ptr<StreamSession> session_of_reader_;

  std::shared_ptr<StreamSession> session_ ABSL_GUARDED_BY(mutex_);  // null before the config
  std::string model_ ABSL_GUARDED_BY(mutex_);                       // model_ and version_ come from the config
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  int priority_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_frames_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_ok_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::shared_ptr<Call> MakeInferStream(const CallEnvironment* environment, grpc::CallbackServerContext* context) {
  return std::make_shared<InferStreamCall>(environment, context);
}

}  // namespace voxserve
