#include "server/calls/call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "server/calls/load_report.h"
#include "server/codec/grpc_status.h"
#include "server/codec/message_parser.h"
#include "server/sockets/peer.h"

namespace voxserve {
namespace {

// A call that is cancelled within this time was useless. It is half the period of a fast sensor (20 Hz), whose vehicle
// gives a frame up when the next one comes: a server under load takes notice of the call late. Whoever waits longer
// before it cancels is not counted, and is held by the limit of calls at a time.
constexpr absl::Duration kSoon = absl::Milliseconds(25);

}  // namespace

// ---- Call

Call::Call(const CallEnvironment* environment, grpc::CallbackServerContext* context, CallKind kind)
    : environment_(environment),
      context_(context),
      kind_(kind),
      peer_(context->peer()),
      source_(environment->connections->SourceOf(peer_)),
      trace_(TraceContextOf(context->client_metadata())),
      caller_({.client = ClientOf(source_), .token = nullptr}),
      deadline_(DeadlineOf(*context)) {}

void Call::OnDone() {
  StopAnswerTimer();
  {
    absl::MutexLock lock(&context_mutex_);
    is_done_ = true;
  }
  // Whatever finds no memory here, the call's place must not stay taken.
  Guard([this] { OnClosed(); });
  Guard([this] {
    if (was_used_) environment_->connections->OnUsed(peer_, SteadyNow() + kRecentUse);
  });
  const std::shared_ptr<Call> self = shared_from_this();  // OpenCalls may hold the last other reference
  environment_->calls->Close(self);
  Guard([this] {
    if (environment_->calls->Reading(peer_).all() == 0) environment_->connections->OnIdle(peer_);
  });
}

void Call::EndReading() {
  Guard([this] {
    if (!environment_->calls->EndReading(shared_from_this())) environment_->connections->OnIdle(peer_);
  });
}

absl::Status Call::CheckIdentity() const {
  if (caller_.connection != nullptr) {
    RETURN_IF_ERROR(environment_->client_certificates->Check(*caller_.connection));
  }
  if (caller_.token == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Caller now, environment_->authoriser->LookAgain(caller_));
  return now.token == caller_.token ? absl::OkStatus() : CheckStillAllowed(now);
}

void Call::LookAtIdentity() {
  if (is_dismissed_) return;
  const absl::Status status = CheckIdentity();
  if (status.ok()) return;
  is_dismissed_ = true;
  environment_->metrics->OnCallEndedEarly(ReasonOf(status));
  if (ReasonOf(status) == error_reason::kCertificateRefused) environment_->connections->OnRefusedCertificate(peer_);
  Dismiss(status);
}

void Call::SetAnswerTimer(absl::Time limit) {
  answer_limit_ = limit;
  answer_timer_ = SetTimer(limit, &Call::CutUnread);
}

void Call::StartAnswerTimer(int64_t bytes) {
  const CallTimes& times = environment_->times;
  absl::Duration limit = times.answer + absl::Seconds(static_cast<double>(bytes) / times.answer_bytes_per_second);
  absl::MutexLock lock(&answer_mutex_);
  if (drain_left_.has_value()) limit = std::min(limit, *drain_left_);
  answer_began_ = SteadyNow();
  SetAnswerTimer(answer_began_ + limit);
}

void Call::StopAnswerTimer() {
  absl::MutexLock lock(&answer_mutex_);
  if (answer_timer_ == 0) return;
  environment_->timers->Clear(std::exchange(answer_timer_, 0));
  if (drain_left_.has_value()) *drain_left_ -= SteadyNow() - answer_began_;
}

void Call::ShortenAnswerTimer() {
  absl::MutexLock lock(&answer_mutex_);
  drain_left_ = environment_->times.drained_answer;
  answer_began_ = SteadyNow();
  const absl::Time limit = answer_began_ + *drain_left_;
  if (answer_timer_ == 0 || answer_limit_ <= limit) return;
  environment_->timers->Clear(answer_timer_);
  SetAnswerTimer(limit);
}

void Call::CutUnread() {
  {
    absl::MutexLock lock(&answer_mutex_);
    if (answer_timer_ == 0 || SteadyNow() < answer_limit_) return;  // the answer was read, or a later one is being sent
    answer_timer_ = 0;
    was_cut_ = true;
  }
  environment_->metrics->OnCallEndedEarly(error_reason::kAnswerUnread);
  if (environment_->log_limiter->Admit(error_reason::kAnswerUnread).has_value()) {
    Log(LogLevel::kInfo, "cut off a call whose answer was not read",
        {TraceIdField(trace_), SpanIdField(trace_), {"peer", source_}});
  }
  absl::MutexLock lock(&context_mutex_);  // the context lives: OnDone waits for the lock, or has set is_done_
  if (!is_done_) context_->TryCancel();
}

absl::Time Call::idle_since() const {
  const int64_t since = idle_since_ns_;
  return since == kInUse ? absl::InfiniteFuture() : absl::FromUnixNanos(since);
}

void Call::BeginUse() {
  was_used_ = true;
  idle_since_ns_ = kInUse;
}

void Call::EndUse() {
  int64_t in_use = kInUse;
  idle_since_ns_.compare_exchange_strong(in_use, absl::ToUnixNanos(SteadyNow() + kRecentUse));
}

void Call::OnOutOfMemory() const {
  try {
    environment_->metrics->OnCallEndedEarly(error_reason::kOutOfMemory);
  } catch (const std::bad_alloc&) {  // then the metrics lack it
  }
}

grpc::Status Call::GrpcStatusOf(const absl::Status& status) {
  // Without a message, so that nothing is allocated.
  grpc::Status made(static_cast<grpc::StatusCode>(status.code()), "");
  Guard([&] { made = ToGrpcStatus(status, context_); });
  return made;
}

bool Call::was_cut() const {
  absl::MutexLock lock(&answer_mutex_);
  return was_cut_;
}

void Call::CountMessage(const grpc::ByteBuffer& message) {
  const bool is_first = !has_message_.exchange(true);
  Guard([&] { environment_->connections->OnMessage(peer_, static_cast<int64_t>(message.Length()), is_first); });
}

void Call::CountEarlyEnd() {
  if (SteadyNow() - began_ >= kSoon || ended_early_.exchange(true)) return;
  if (has_message_) {
    environment_->connections->OnCancelledCall(peer_);
  } else {
    environment_->connections->OnUselessCall(peer_);
  }
}

absl::Status Call::WhyCancelled() const {
  if (was_cut()) {
    return WithReason(absl::CancelledError("the client did not read its answer in time"), error_reason::kAnswerUnread);
  }
  if (SteadyNow() >= deadline_ - kDeadlineTransit) {
    return WithReason(absl::DeadlineExceededError("the deadline passed before the answer was ready"),
                      error_reason::kDeadlineExpired);
  }
  return WithReason(absl::CancelledError("the client cancelled"), error_reason::kCancelled);
}

// ---- RequestCall

void RequestCall::Start() {
  std::optional<absl::Status> refused;
  {
    absl::MutexLock lock(&mutex_);
    refused = refused_;
    is_reading_ = !refused.has_value();
    if (is_reading_) request_timer_ = SetTimer(SteadyNow() + environment().times.request, &RequestCall::OnIncomplete);
  }
  if (refused.has_value()) {
    End(*refused);
  } else {
    StartRead(&request_);
  }
}

bool RequestCall::StopReading() {
  {
    absl::MutexLock lock(&mutex_);
    environment().timers->Clear(std::exchange(request_timer_, 0));
    if (!std::exchange(is_reading_, false)) return false;
  }
  EndReading();
  return true;
}

// If `ok` is false, the client has half-closed, or it is gone and gRPC also calls OnCancel.
void RequestCall::OnReadDone(bool ok) {
  if (ok) CountMessage(request_);
  const bool is_wanted = StopReading();
  if (ok && is_wanted && kind() == CallKind::kRequest) BeginUse();
  if (ok && is_wanted && !Guard([this] { OnRequest(request_); })) End(OutOfMemoryError());
  request_.Clear();
  if (ok || !is_wanted) return;
  CountEarlyEnd();
  End(context()->IsCancelled()
          ? WhyCancelled()
          : WithReason(absl::InvalidArgumentError("the call has no request"), error_reason::kRequestIncomplete));
}

void RequestCall::OnIncomplete() {
  if (!StopReading()) return;
  environment().metrics->OnCallEndedEarly(error_reason::kRequestIncomplete);
  End(WithReason(absl::DeadlineExceededError(absl::StrCat("the request did not come within ",
                                                          absl::FormatDuration(environment().times.request))),
                 error_reason::kRequestIncomplete));
}

void RequestCall::OnCancel() {
  const absl::Status why = WhyCancelled();
  CountEarlyEnd();
  if (StopReading()) {
    End(why);
  } else if (!has_ended()) {
    OnAbandoned(why);
  }
}

void RequestCall::Dismiss(const absl::Status& why) {
  if (StopReading()) {
    End(why);
  } else if (!has_ended()) {
    OnAbandoned(why);
  }
}

void RequestCall::Drain() {
  ShortenAnswerTimer();
  {
    absl::MutexLock lock(&mutex_);
    refused_ = DrainingError();
  }
  if (StopReading()) End(DrainingError());
}

// A request that has arrived meanwhile is answered. Calls of health and the like end at any time.
void RequestCall::GiveWay(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    refused_ = why;
  }
  const bool is_incomplete = StopReading();
  if (!is_incomplete && kind() != CallKind::kInfo) return;
  if (End(why)) environment().metrics->OnCallEndedEarly(ReasonOf(why));
}

void RequestCall::Update(grpc::ByteBuffer message) {
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    next_ = std::move(message);
  }
  Advance();
}

bool RequestCall::End(const absl::Status& whole_status, std::optional<grpc::ByteBuffer> last, HeldBytes held) {
  absl::Status status = whole_status;
  Guard([&] { status = caller().Narrowed(whole_status); });
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return false;
    end_ = status;
    last_ = std::move(last);
    held_ = std::move(held);
    next_.reset();
  }
  // The call must end even if there is no memory to tell of it.
  Guard([&] {
    if (ReasonOf(status) == error_reason::kMalformed) environment().metrics->OnCallEndedEarly(error_reason::kMalformed);
    OnEnded(status);
  });
  Advance();
  return true;
}

void RequestCall::EndWith(const google::protobuf::Message& last, HeldBytes held) {
  absl::StatusOr<grpc::ByteBuffer> bytes = OutOfMemoryError();
  Guard([&] { bytes = Serialize(last); });
  if (bytes.ok()) {
    End(absl::OkStatus(), *std::move(bytes), std::move(held));
  } else {
    End(bytes.status());
  }
}

bool RequestCall::has_ended() const {
  absl::MutexLock lock(&mutex_);
  return end_.has_value();
}

bool RequestCall::is_updating() const {
  absl::MutexLock lock(&mutex_);
  return is_writing_ || next_.has_value();
}

// If `ok` is false, the client is gone, and gRPC also calls OnCancel.
void RequestCall::OnWriteDone(bool /*ok*/) {
  StopAnswerTimer();
  {
    absl::MutexLock lock(&mutex_);
    is_writing_ = false;
  }
  Advance();
}

void RequestCall::Advance() {
  bool may_finish = false;
  {
    absl::MutexLock lock(&mutex_);
    if (is_writing_ || is_finished_) return;
    if (end_.has_value()) {
      is_finished_ = may_finish = true;
    } else if (next_.has_value()) {
      message_ = *std::move(next_);
      next_.reset();
      is_writing_ = true;
    } else {
      return;
    }
  }
  // No other thread writes or finishes the call now, so message_ and last_ do not change while they are sent.
  if (may_finish && kind() == CallKind::kRequest) Guard([this] { AddLoadReport(environment(), context()); });
  if (!may_finish) {
    StartAnswerTimer(static_cast<int64_t>(message_.Length()));
    StartWrite(&message_);
  } else if (last_.has_value()) {
    StartAnswerTimer(static_cast<int64_t>(last_->Length()));
    StartWriteAndFinish(&*last_, grpc::WriteOptions(), GrpcStatusOf(*end_));
  } else {
    StartAnswerTimer(0);
    Finish(GrpcStatusOf(*end_));
  }
}

// ---- RefusedCall

RefusedCall::RefusedCall(grpc::CallbackServerContext* context, const absl::Status& status) {
  Finish(ToGrpcStatus(status, context));
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  // A timeout of centuries wraps gRPC's time point to one before 1970.
  const bool is_wrapped = deadline < std::chrono::system_clock::time_point();
  if (is_wrapped || deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  // gRPC computed the deadline by the system clock. absl::Now would not do here: it notices only seconds later that
  // this clock was set.
  return SteadyNow() + (absl::FromChrono(deadline) - absl::FromChrono(std::chrono::system_clock::now()));
}

}  // namespace voxserve
