#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
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
#include "server/codec/message_parser.h"
#include "server/services/frame_collector.h"
#include "server/services/frame_parts.h"
#include "server/services/frame_result.h"
#include "server/services/services.h"
#include "server/services/stream_config.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {
namespace {

// A stream that drains takes the parts of a frame that has begun for this long.
constexpr absl::Duration kDrainedParts = absl::Seconds(1);
constexpr std::string_view kNextFrameBegan = "the next frame began";

// One call of InferStream.
//
// A frame that comes in parts is collected by the thread that handles a message. Other threads may end it meanwhile:
// when its time is over, and when the stream fails or is cancelled. Whoever takes it out of collector_ for good gives
// it to the session.
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
      collector_.ExpireBy(SteadyNow() + kDrainedParts);
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
    EndCollected(why);
  }

  // Parts that lack do not come any more.
  void OnReadAll() override { EndUnfinished("the client sends no more"); }

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

  // Returns when a waiting frame, the sweeps or the frame that comes in parts expire.
  absl::Time NextExpiry() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (session_ == nullptr) return absl::InfiniteFuture();
    return std::min(session_->NextExpiry(), collector_.NextExpiry());
  }

  void ExpireDue() override {
    std::shared_ptr<StreamSession> session;
    {
      absl::MutexLock lock(&mutex_);
      session = session_;
    }
    if (session != nullptr) session->ExpireDue();
    PushFailed([](FrameCollector& collector) { return collector.TakeExpired(SteadyNow()); },
               [](const FrameParts& parts) {
                 return parts.Incomplete(absl::StatusCode::kDeadlineExceeded, "the time for its parts is over");
               });
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

  void OnFailed(const absl::Status& status) override {
    TelemetryOf("").Fail(status);
    EndCollected(status);
  }

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
    return LockedTelemetryOf(std::move(request_id));
  }
  RequestTelemetry LockedTelemetryOf(std::string request_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return RequestTelemetry({model_, version_, std::move(request_id), source(), trace()}, environment());
  }

  // ---- incoming messages: only OnMessage calls these functions

  void OnMessage(grpc::ByteBuffer* bytes) override {
    absl::StatusOr<HeldBytes> held = HoldMessage(static_cast<int64_t>(bytes->Length()), 0);
    if (!held.ok()) return OnBadMessage(held.status(), FrameNameOf(*bytes));
    v1::InferStreamRequest message;
    HostBuffer data;
    // The points of a part are copied once more, to their place in the frame, so they need no page-locked memory.
    const auto allocate = [this](int64_t size) {
      return sends_parts_ ? HostBuffer::Create(size) : AllocateCloud(size);
    };
    absl::Status status = ParseStreamRequest(*bytes, allocate, &message, &data);
    const FrameName frame = status.ok() ? FrameNameOf(message) : FrameNameOf(*bytes);
    bytes->Clear();
    if (status.ok()) {
      const int64_t parsed_bytes = static_cast<int64_t>(message.SpaceUsedLong()) + data.size();
      absl::StatusOr<HeldBytes> parsed = HoldMessage(parsed_bytes, held->bytes());
      status = parsed.status();
      held = std::move(parsed);
    }
    if (!status.ok()) return OnBadMessage(status, frame);
    switch (message.request_case()) {
      case v1::InferStreamRequest::kConfig:
        return OnConfig(message.config());
      case v1::InferStreamRequest::kFrame:
        return OnFrame(std::move(*message.mutable_frame()), std::move(data), *std::move(held));
      case v1::InferStreamRequest::kPart:
        return OnPart(std::move(*message.mutable_part()), std::move(data), *std::move(held));
      case v1::InferStreamRequest::REQUEST_NOT_SET:
        return Fail(BadStreamError("a message has no config, no frame and no part"));
    }
  }

  // Holds the bytes of a message. in_place_of: bytes already held for it.
  absl::StatusOr<HeldBytes> HoldMessage(int64_t bytes, int64_t in_place_of) {
    // The frames that this one supersedes are not counted. Otherwise a stream at its limit could not replace its older
    // frames.
    if (session_of_reader_ != nullptr) in_place_of += session_of_reader_->BytesAheadOfNext();
    return environment().bytes->Hold(ByteKind::kFrame, client(), bytes, in_place_of);
  }

  absl::StatusOr<HostBuffer> AllocateCloud(int64_t bytes) {
    return environment().engine->AllocateCloud(bytes, has_sweeps_ ? BufferLife::kStream : BufferLife::kRequest);
  }

  // Answers a message that cannot be parsed as a frame or a part with an error. Before the config there are no frames,
  // so the error ends the stream.
  void OnBadMessage(const absl::Status& why, const FrameName& frame) {
    if (ReasonOf(why) == error_reason::kMalformed) environment().metrics->OnCallEndedEarly(error_reason::kMalformed);
    if (session_of_reader_ == nullptr) return Fail(why);
    RequestCodec codec = NewCodec();
    if (frame.kind == v1::InferStreamRequest::kPart && frame.frame_id.has_value()) {
      std::unique_ptr<FrameParts> parts = PartsOf(*frame.frame_id);
      if (parts != nullptr) SettleParts(std::move(parts), why, std::move(codec));
      return;
    }
    // A part that does not say of which frame it is leaves the frame that is being collected as it is.
    if (frame.kind == v1::InferStreamRequest::kFrame) EndUnfinished(kNextFrameBegan);
    const uint64_t frame_id = frame.frame_id.value_or(0);
    PushFrame(frame_id, StreamFrame{.cloud = why}, HeldBytes(), std::move(codec), TelemetryOf(absl::StrCat(frame_id)));
  }

  RequestCodec NewCodec() { return {&environment(), client()}; }

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
    EndUnfinished(kNextFrameBegan);
    sends_parts_ = false;
    RequestCodec codec = NewCodec();
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
    PushDecoded(message.frame_id(), std::move(frame), std::move(held), std::move(codec), std::move(telemetry));
  }

  // Pushes a frame whose cloud has been decoded, or could not be.
  void PushDecoded(uint64_t frame_id, StreamFrame frame, HeldBytes held, RequestCodec codec, RequestTelemetry telemetry,
                   bool is_collected = false) {
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
    PushFrame(frame_id, std::move(frame), std::move(held), std::move(codec), std::move(telemetry), is_collected);
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

  // Hands the frame to the session, which answers it exactly once. is_collected: it came in parts.
  void PushFrame(uint64_t frame_id, StreamFrame frame, HeldBytes held, RequestCodec codec, RequestTelemetry telemetry,
                 bool is_collected = false) {
    const bool has_points = frame.cloud.ok() && frame.cloud->num_points() > 0;
    std::shared_ptr<StreamSession> session;
    {
      absl::MutexLock lock(&mutex_);
      if (is_finished_) return;
      session = session_;
      BeginRequest(has_points);
      if (is_collected) --num_collecting_;
      ++num_frames_;
    }
    const bool is_taken = Guard([&] {
      frame.done = DoneOf(frame_id, std::move(held), std::move(codec), std::move(telemetry));
      session->Push(std::move(frame));
    });
    if (is_taken) return;
    EndOutOfMemory();
    absl::MutexLock lock(&mutex_);
    --num_unanswered_;
  }

  std::function<void(absl::StatusOr<InferResult>, int)> DoneOf(uint64_t frame_id, HeldBytes held, RequestCodec codec,
                                                               RequestTelemetry telemetry) {
    // `held` is in a shared_ptr, since a std::function must be copyable and HeldBytes is not.
    return [self = self(), codec = std::move(codec), telemetry = std::move(telemetry), frame_id,
            held = std::make_shared<HeldBytes>(std::move(held))](absl::StatusOr<InferResult> result,
                                                                 int num_sweeps) mutable {
      held->Release();
      self->OnAnswer(frame_id, std::move(result), num_sweeps, &codec, telemetry);
    };
  }

  // ---- frames that come in parts

  void OnPart(v1::FramePart message, HostBuffer data, HeldBytes held) {
    if (session_of_reader_ == nullptr) return Fail(BadStreamError("the first message must be the stream's config"));
    sends_parts_ = true;
    RequestCodec codec = NewCodec();
    std::unique_ptr<FrameParts> parts = PartsOf(message.frame_id());
    if (parts == nullptr) return;
    absl::Status status = out_of_memory_;
    Guard([&] { status = AddPart(std::move(message), std::move(data), std::move(held), &codec, *parts); });
    SettleParts(std::move(parts), std::move(status), std::move(codec));
  }

  static absl::Status AddPart(v1::FramePart message, HostBuffer data, HeldBytes held, RequestCodec* codec,
                              FrameParts& parts) {
    if (!message.has_cloud()) {
      return WithReason(absl::InvalidArgumentError("a part of the frame has no cloud"), error_reason::kMissingCloud);
    }
    absl::StatusOr<PointCloud> cloud = codec->Decode(message.mutable_cloud(), std::move(data));
    if (!cloud.ok()) return cloud.status();
    return parts.Add(message, *std::move(cloud), std::move(held));
  }

  // Returns the frame for its next part; the caller must hand it to SettleParts. Begins the frame if it is new, and
  // ends the one before it. Returns null if the frame has its result.
  std::unique_ptr<FrameParts> PartsOf(uint64_t frame_id) {
    {
      absl::MutexLock lock(&mutex_);
      std::unique_ptr<FrameParts> parts = collector_.Resume(frame_id);
      if (parts != nullptr || collector_.IsRecent(frame_id)) return parts;
    }
    EndUnfinished(kNextFrameBegan);
    auto begun = std::make_unique<FrameParts>(frame_id, OptionsOfParts());
    absl::MutexLock lock(&mutex_);
    // A stream that ends takes no new frame.
    collector_.Begin(frame_id, SteadyNow() + environment().times.silence, end_);
    ++num_collecting_;
    return begun;
  }

  FrameParts::Options OptionsOfParts() {
    const CallEnvironment& server = environment();
    std::string name;
    int64_t version = 0;
    {
      absl::MutexLock lock(&mutex_);
      name = model_;
      version = version_;
    }
    // A model that is gone has no limit here: the engine refuses the frame.
    const absl::StatusOr<ModelVersionInfo> model = server.engine->GetModel(name, version);
    const bool is_ready = model.ok() && model->state == ModelState::kReady;
    return {.max_points = is_ready ? static_cast<uint64_t>(model->max_points) : uint64_t{1} << 62,
            .model = std::move(name),
            .max_bytes = server.max_message_bytes,
            .expected_bytes = last_frame_bytes_,
            .allocate = [this](int64_t bytes) { return AllocateCloud(bytes); },
            .hold = [this](int64_t bytes) { return HoldMessage(bytes, 0); }};
  }

  // Keeps the frame for its next part, or pushes it, if it is complete or `status` is an error.
  void SettleParts(std::unique_ptr<FrameParts> parts, absl::Status status, RequestCodec codec) {
    {
      absl::MutexLock lock(&mutex_);
      status = collector_.GiveBack(&parts, std::move(status));
    }
    if (parts == nullptr) return;
    const bool is_pushed =
        status.ok() && Guard([&] {
          StreamFrame frame{.pose = parts->pose(), .reset_sweeps = parts->reset_sweeps(), .is_accepted = true};
          RequestTelemetry telemetry = TelemetryOf(absl::StrCat(parts->frame_id()));
          telemetry.SetCloud(parts->Description());
          last_frame_bytes_ = parts->num_bytes();
          frame.cloud = parts->TakeCloud();
          PushDecoded(parts->frame_id(), std::move(frame), parts->TakeHeld(), std::move(codec), std::move(telemetry),
                      /*is_collected=*/true);
        });
    if (is_pushed) return;
    PushFailed([&](FrameCollector& /*collector*/) { return std::move(parts); },
               [&](const FrameParts& /*parts*/) { return status.ok() ? out_of_memory_ : status; });
  }

  // Ends the frame whose parts have come in part, since no further part can come.
  void EndUnfinished(std::string_view why) {
    PushFailed([](FrameCollector& collector) { return collector.Take(); },
               [&](const FrameParts& parts) { return parts.Incomplete(absl::StatusCode::kInvalidArgument, why); });
  }

  // Ends the frame whose parts have come in part with this error. Any thread may call it.
  void EndCollected(const absl::Status& why) {
    PushFailed([&](FrameCollector& collector) { return collector.TakeOrEnd(why); },
               [&](const FrameParts& /*parts*/) { return why; });
  }

  // Answers the frame in parts that `take` returns, if any, with the error that `error_of` makes. Any thread may call
  // it. The session has the frame before mutex_ is released, so that the thread that handles a message gives it no
  // later frame before this one.
  void PushFailed(absl::FunctionRef<std::unique_ptr<FrameParts>(FrameCollector&)> take,
                  absl::FunctionRef<absl::Status(const FrameParts&)> error_of) {
    std::unique_ptr<FrameParts> parts;
    std::shared_ptr<StreamSession> session;
    const bool is_added = Guard([&] {
      absl::MutexLock lock(&mutex_);
      parts = take(collector_);
      if (parts == nullptr) return;
      absl::Status why = out_of_memory_;
      Guard([&] { why = error_of(*parts); });
      AddFailed(*parts, why);
      session = session_;
    });
    if (session != nullptr) session->Advance();
    if (is_added) return;
    EndOutOfMemory();  // without an answer to this frame
    {
      absl::MutexLock lock(&mutex_);
      --num_collecting_;
    }
    Advance();
  }

  // Adds the frame to the session, which answers it in its next Advance. Changes nothing if it throws std::bad_alloc.
  void AddFailed(const FrameParts& parts, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t frame_id = parts.frame_id();
    StreamFrame frame{.cloud = why, .reset_sweeps = parts.reset_sweeps(), .is_accepted = true};
    frame.done = DoneOf(frame_id, HeldBytes(), NewCodec(), LockedTelemetryOf(absl::StrCat(frame_id)));
    session_->Add(std::move(frame));
    BeginRequest(/*has_points=*/false);
    --num_collecting_;
    ++num_frames_;
  }

  // ---- outgoing messages

  void OnAnswer(uint64_t frame_id, absl::StatusOr<InferResult> result, int num_sweeps, RequestCodec* codec,
                const RequestTelemetry& telemetry) {
    EncodedFrameResult answer;
    const bool has_room =
        Guard([&] { answer = EncodeFrameResult(caller(), frame_id, std::move(result), num_sweeps, codec, telemetry); });
    // The error is small. If there is no memory for it either, the stream ends without an answer to this frame.
    if (!has_room &&
        !Guard([&] { answer = EncodeFrameResult(caller(), frame_id, out_of_memory_, 0, codec, telemetry); })) {
      EndOutOfMemory();
    }
    if (KeepAnswer({.message = std::move(answer.message), .held = std::move(answer.held)}) && answer.is_ok) {
      absl::MutexLock lock(&mutex_);
      ++num_ok_;
    }
    EndRequest();
  }

  // Used only by the thread that handles a message that was read.
  bool has_sweeps_ = false;
  bool sends_parts_ = false;      // the client's last frame came in parts
  int64_t last_frame_bytes_ = 0;  // of the points of the last frame that came in parts
  std::shared_ptr<StreamSession> session_of_reader_;

  const absl::Status out_of_memory_ = OutOfMemoryError();  // made in advance, while there is memory

  std::shared_ptr<StreamSession> session_ ABSL_GUARDED_BY(mutex_);  // null before the config
  std::string model_ ABSL_GUARDED_BY(mutex_);                       // model_ and version_ come from the config
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  int priority_ ABSL_GUARDED_BY(mutex_) = 0;
  FrameCollector collector_ ABSL_GUARDED_BY(mutex_);
  int64_t num_frames_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_ok_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::shared_ptr<Call> MakeInferStream(const CallEnvironment* environment, grpc::CallbackServerContext* context) {
  return std::make_shared<InferStreamCall>(environment, context);
}

}  // namespace voxserve
