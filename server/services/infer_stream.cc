#include "server/services/infer_stream.h"

#include <grpcpp/alarm.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/streams/stream_session.h"
#include "server/codec/codec.h"
#include "server/codec/grpc_status.h"
#include "server/services/stream_config.h"

namespace voxserve {
namespace {

// Answers of a stream that wait for its client to read, beyond which the stream reads no more frames.
constexpr size_t kMaxUnsentAnswers = 8;

absl::Status BadStream(const std::string& message) {
  return WithReason(absl::InvalidArgumentError(message), error_reason::kBadStream);
}

absl::Status Draining() {
  return WithReason(absl::UnavailableError("the server is shutting down"), error_reason::kDraining);
}

}  // namespace

// One InferStream. It is the service's until OnDone, the last that gRPC calls, and every frame's until it is answered.
//
// gRPC may call back within any Start... or Finish: they are called without the lock, by whoever set the flag that says
// that one is under way.
class InferStreams::Call final : public InferStreams::Reactor, public std::enable_shared_from_this<Call> {
 public:
  Call(InferStreams* streams, grpc::CallbackServerContext* context)
      : streams_(streams), context_(context), peer_(context->peer()), deadline_(DeadlineOf(*context)) {}

  void Start() {
    const bool is_draining = !streams_->Hold(shared_from_this());
    const absl::Status accepted = limits().AcceptStream();
    is_accepted_ = accepted.ok();
    if (!accepted.ok()) return Fail(accepted);
    if (is_draining) return StartDraining();
    Advance();
  }

  void StartDraining() {
    std::shared_ptr<StreamSession> session;
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      draining_ = true;
      end_ = Draining();
      v1::InferStreamResponse message;
      message.mutable_going_away();
      unsent_.push_back({std::move(message), 0});
      session = session_;
    }
    if (session != nullptr) session->StartDraining();
    Advance();
  }

  // ok = false: the client has half-closed, or is gone, which OnCancel says.
  void OnReadDone(bool ok) override {
    if (ok) OnMessage();
    {
      absl::MutexLock lock(&mutex_);
      is_reading_ = false;
      if (!ok) {
        has_read_all_ = true;
        if (!end_.has_value()) end_ = absl::OkStatus();
      }
    }
    Advance();
  }

  // ok = false: the client is gone.
  void OnWriteDone(bool ok) override {
    limits().ReleaseAnswer(sending_.bytes);
    sending_ = Outgoing();
    {
      absl::MutexLock lock(&mutex_);
      is_writing_ = false;
      if (!ok) DropAnswers();
    }
    Advance();
  }

  void OnCancel() override {
    const absl::Status why =
        absl::Now() >= deadline_
            ? WithReason(absl::DeadlineExceededError("the stream's deadline passed"), error_reason::kDeadlineExpired)
            : WithReason(absl::CancelledError("the client cancelled the stream"), error_reason::kCancelled);
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

  void OnDone() override {
    if (session_of_reader_ != nullptr) {
      streams_->options_.metrics->OnStreamClosed(model_);
      absl::MutexLock lock(&mutex_);
      Log(LogLevel::kInfo, "stream ended",
          {{"model", Clipped(model_)},
           {"frames", num_frames_},
           {"answered", num_ok_},
           {"code", absl::StatusCodeToString(end_->code())},
           {"reason", ReasonOf(*end_)},
           {"seconds", absl::ToDoubleSeconds(absl::Now() - started_)},
           {"peer", peer_}});
    }
    if (is_accepted_) limits().ReleaseStream();
    streams_->Release(shared_from_this());
  }

 private:
  struct Outgoing {
    v1::InferStreamResponse message;
    int64_t bytes = 0;  // held of CallLimits
  };

  CallLimits& limits() const { return *streams_->options_.limits; }

  // ---- what the client sends: from OnReadDone alone

  void OnMessage() {
    switch (request_.request_case()) {
      case v1::InferStreamRequest::kConfig:
        return OnConfig();
      case v1::InferStreamRequest::kFrame:
        return OnFrame();
      case v1::InferStreamRequest::REQUEST_NOT_SET:
        return Fail(BadStream("a message has neither a config nor a frame"));
    }
  }

  void OnConfig() {
    const bool is_second = session_of_reader_ != nullptr;
    if (is_second) return Fail(BadStream("the stream has a config already"));
    absl::StatusOr<StreamSession::Config> config = DecodeStreamConfig(request_.config());
    absl::Status status = config.status();
    if (status.ok()) {
      const absl::StatusOr<ModelVersionInfo> model = streams_->engine_->GetModel(config->model, config->version);
      status = model.ok() ? CheckStreamConfig(*model, *config) : model.status();
    }
    model_ = request_.config().model();
    version_ = request_.config().version();
    if (!status.ok()) return Fail(status);

    sweeps_ = config->sweeps.has_value();
    Engine* const engine = streams_->engine_;
    session_of_reader_ = StreamSession::Create(
        *std::move(config),
        {.submit = [engine](InferTask task) { return engine->Submit(std::move(task)); },
         .cancel = [engine](uint64_t ticket, DropReason reason) { return engine->Cancel(ticket, reason); },
         .observer = streams_->options_.metrics});
    streams_->options_.metrics->OnStreamOpened(model_);
    bool is_draining = false;
    {
      absl::MutexLock lock(&mutex_);
      session_ = session_of_reader_;
      is_draining = draining_;
    }
    if (is_draining) session_of_reader_->StartDraining();
  }

  void OnFrame() {
    if (session_of_reader_ == nullptr) return Fail(BadStream("the first message must be the stream's config"));
    {
      absl::MutexLock lock(&mutex_);
      if (is_finished_) return;
      ++num_unanswered_;
      ++num_frames_;
    }
    v1::StreamFrame& message = *request_.mutable_frame();
    const uint64_t frame_id = message.frame_id();
    RequestTelemetry telemetry(
        {.model = model_, .version = version_, .request_id = absl::StrCat(frame_id), .peer = peer_},
        streams_->options_);
    const auto frame_bytes = static_cast<int64_t>(message.cloud().data().size());
    StreamFrame frame;
    frame.reset_sweeps = message.reset_sweeps();
    if (message.has_pose()) frame.pose = DecodePose(message.pose());
    frame.cloud = DecodeFrame(frame_bytes, &message, &telemetry);
    if (sweeps_ && frame.cloud.ok()) {
      absl::StatusOr<std::shared_ptr<const void>> held = HoldSweep(frame_bytes);
      if (held.ok()) {
        frame.reservation = *std::move(held);
      } else {
        limits().ReleaseFrame(frame_bytes);
        frame.cloud = held.status();
      }
    }
    frame.stamp = telemetry.stamp();
    const int64_t held_bytes = frame.cloud.ok() ? frame_bytes : 0;
    frame.done = [self = shared_from_this(), telemetry = std::move(telemetry), frame_id, held_bytes](
                     absl::StatusOr<InferResult> result, int num_sweeps) mutable {
      self->OnAnswer(frame_id, std::move(result), num_sweeps, held_bytes, &telemetry);
    };
    session_of_reader_->Push(std::move(frame));
  }

  // The frame's cloud, whose bytes are held then.
  absl::StatusOr<PointCloud> DecodeFrame(int64_t bytes, v1::StreamFrame* message, RequestTelemetry* telemetry) {
    if (!message->has_cloud()) {
      return WithReason(absl::InvalidArgumentError("the frame has no cloud"), error_reason::kMissingCloud);
    }
    absl::StatusOr<PointCloud> cloud = telemetry->Decode(message->mutable_cloud());
    if (!cloud.ok()) return cloud;
    // What gives way to this frame makes room for it: without, the stream would be left with its older frame.
    const absl::Status held = limits().HoldFrame(bytes, session_of_reader_->BytesAheadOfNext());
    if (!held.ok()) return held;
    return cloud;
  }

  // The frame's cloud as a sweep. Where there is no room this stream's own sweeps make some: else none would ever be
  // let go of.
  absl::StatusOr<std::shared_ptr<const void>> HoldSweep(int64_t bytes) {
    absl::StatusOr<std::shared_ptr<const void>> held = limits().HoldSweep(bytes);
    if (held.ok()) return held;
    held = limits().HoldSweep(bytes, session_of_reader_->SweepBytes());
    if (held.ok()) session_of_reader_->ForgetSweeps();
    return held;
  }

  // ---- what it gets

  void OnAnswer(uint64_t frame_id, absl::StatusOr<InferResult> result, int num_sweeps, int64_t frame_bytes,
                RequestTelemetry* telemetry) {
    limits().ReleaseFrame(frame_bytes);
    Outgoing outgoing;
    v1::FrameResult& message = *outgoing.message.mutable_result();
    message.set_frame_id(frame_id);
    absl::Status status = result.status();
    if (result.ok()) {
      const absl::StatusOr<int64_t> bytes = telemetry->Answer(*std::move(result), message.mutable_response());
      status = bytes.status();
      if (bytes.ok()) outgoing.bytes = *bytes;
    } else {
      telemetry->Fail(status);
    }
    if (status.ok()) {
      message.set_num_sweeps(static_cast<uint32_t>(num_sweeps));
    } else {
      message.clear_response();
      *message.mutable_status() = ToRpcStatus(status);
    }
    {
      absl::MutexLock lock(&mutex_);
      if (is_broken_) {
        limits().ReleaseAnswer(outgoing.bytes);
      } else {
        unsent_.push_back(std::move(outgoing));
      }
      if (status.ok()) ++num_ok_;
      --num_unanswered_;
    }
    Advance();
  }

  // Nobody will read them.
  void DropAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    is_broken_ = true;
    for (const Outgoing& outgoing : unsent_) limits().ReleaseAnswer(outgoing.bytes);
    unsent_.clear();
  }

  // ---- the stream's end

  // Ends the stream when the frames that it took are answered. The first end counts.
  void Fail(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      end_ = status;
    }
    const RequestTelemetry telemetry({.model = model_, .version = version_, .request_id = "", .peer = peer_},
                                     streams_->options_);
    telemetry.Fail(status);
    Advance();
  }

  // ---- what is under way

  // Starts what can be started, and again what that let go on.
  void Advance() {
    while (StartNext()) continue;
  }

  // True where a look at what became possible meanwhile is due.
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
      // A read may be under way then, but must not be started by another thread after Finish.
      const bool is_idle = num_unanswered_ == 0 && !is_writing_ && num_starting_reads_ == 0;
      if (end_.has_value() && is_idle) is_finished_ = may_finish = true;
      if (!is_finished_) SetAlarm();
    }
    if (may_finish) Finish(ToGrpcStatus(*end_, context_));
    if (may_write) StartWrite(&sending_.message);
    if (!may_read) return false;
    StartRead(&request_);
    absl::MutexLock lock(&mutex_);
    --num_starting_reads_;
    return true;
  }

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_reading_ || has_read_all_ || unsent_.size() >= kMaxUnsentAnswers) return false;
    // While a server drains, clients learn of every frame that they send it, until it has answered what it had taken.
    if (end_.has_value() && !(draining_ && num_unanswered_ > 0)) return false;
    return session_ == nullptr || session_->HasRoom();
  }

  // Calls back when the session has something to let go of: a frame that waits there, or sweeps.
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (session_ == nullptr) return;
    const absl::Time next = session_->NextExpiry();
    if (next >= alarm_time_) return;
    alarm_time_ = next;
    // A new one each time, as this may be called by the one before, which is cancelled where it was for later. Neither
    // calls from within Set.
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(absl::ToChronoTime(next), [weak = weak_from_this()](bool is_due) {
      if (!is_due) return;
      if (const std::shared_ptr<Call> self = weak.lock()) self->OnAlarm();
    });
  }

  void OnAlarm() {
    std::shared_ptr<StreamSession> session;
    {
      absl::MutexLock lock(&mutex_);
      alarm_time_ = absl::InfiniteFuture();
      session = session_;
    }
    session->ExpireDue();
    Advance();
  }

  InferStreams* const streams_;
  grpc::CallbackServerContext* const context_;
  const std::string peer_;
  const absl::Time deadline_;
  const absl::Time started_ = absl::Now();
  bool is_accepted_ = false;

  // The reader's: whoever handles what was read.
  v1::InferStreamRequest request_;
  std::string model_;
  int64_t version_ = 0;
  bool sweeps_ = false;
  std::shared_ptr<StreamSession> session_of_reader_;

  Outgoing sending_;  // on its way: whoever set is_writing_ owns it

  absl::Mutex mutex_;
  std::shared_ptr<StreamSession> session_ ABSL_GUARDED_BY(mutex_);  // from the config on
  std::deque<Outgoing> unsent_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  absl::Time alarm_time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // of the next one
  int64_t num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;                      // frames
  int64_t num_frames_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_ok_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_starting_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that are about to call StartRead, or in it
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing can be written any more
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Set, and changed, under mutex_ before is_finished_ is; then constant.
  std::optional<absl::Status> end_;
};

InferStreams::Reactor* InferStreams::Open(grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<Call>(this, context);
  call->Start();
  return call.get();
}

void InferStreams::StartDraining() {
  std::vector<std::shared_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    calls.assign(calls_.begin(), calls_.end());
  }
  for (const std::shared_ptr<Call>& call : calls) call->StartDraining();
}

bool InferStreams::Hold(std::shared_ptr<Call> call) {
  absl::MutexLock lock(&mutex_);
  calls_.insert(std::move(call));
  return !draining_;
}

void InferStreams::Release(const std::shared_ptr<Call>& call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

}  // namespace voxserve
