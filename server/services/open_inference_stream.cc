#include "server/services/open_inference_stream.h"

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "open_inference.pb.h"
#include "server/codec/grpc_status.h"
#include "server/codec/message_parser.h"
#include "server/services/infer_run.h"
#include "server/services/open_inference_format.h"

namespace voxserve {
namespace {

// The most requests of a stream that are not answered, or whose answer is not sent.
constexpr size_t kMaxOpenRequests = 16;

// Returns the response that tells an error. id: the request's.
absl::StatusOr<InferAnswer> AnswerOf(const absl::Status& error, const std::string& id) {
  inference::ModelStreamInferResponse response;
  response.set_error_message(absl::StrCat(absl::StatusCodeToString(error.code()), ": ", ToRpcStatus(error).message(),
                                          " (", ReasonOf(error), ")"));
  response.mutable_infer_response()->set_id(id);
  InferAnswer answer;
  ASSIGN_OR_RETURN(answer.message, Serialize(response));
  return answer;
}

// One ModelStreamInfer. gRPC may call back within any Start... or Finish. So these are called without the lock, by the
// thread that set the flag for that operation.
class OpenInferenceStream final : public Call {
 public:
  OpenInferenceStream(const ServiceParts* parts, grpc::CallbackServerContext* context)
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
    Fail(DrainingError());
  }

  // ok = false: the client has half-closed, or it is gone and OnCancel is called.
  void OnReadDone(bool ok) override {
    if (ok) parts().on_message(peer(), static_cast<int64_t>(request_.Length()), /*is_first=*/!has_message_);
    has_message_ = has_message_ || ok;
    if (ok) OnMessage();
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
    sending_ = InferAnswer();
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
    std::vector<std::shared_ptr<InferRun>> runs;
    {
      absl::MutexLock lock(&mutex_);
      if (is_finished_) return;
      if (!end_.has_value() || end_->ok()) end_ = why;
      DropAnswers();
      runs.assign(runs_.begin(), runs_.end());
    }
    for (const std::shared_ptr<InferRun>& run : runs) run->Abandon(why);
    Advance();
  }

 private:
  std::shared_ptr<OpenInferenceStream> self() {
    return std::static_pointer_cast<OpenInferenceStream>(shared_from_this());
  }

  void OnClosed() override {
    if (!has_message_) CountUseless();
    absl::MutexLock lock(&mutex_);
    parts().timers->Clear(timer_);
  }

  // Starts the request that was read. One that comes during a drain is answered with the error that ends the stream.
  void OnMessage() {
    std::shared_ptr<InferRun> run;
    const bool has_begun = Guard([&] {
      run = std::make_shared<InferRun>(&parts(), std::make_unique<OpenInferenceFormat>(/*is_streamed=*/true));
      InferRun::Done done = [self = self(), run](absl::StatusOr<InferAnswer> answer) {
        self->OnAnswer(run, std::move(answer));
      };
      std::optional<absl::Status> refused;
      {
        absl::MutexLock lock(&mutex_);
        if (is_finished_) return;
        refused = end_;
        runs_.insert(run);
      }
      if (refused.has_value()) {
        done(*refused);
      } else {
        run->Start({.peer = peer(), .caller = caller(), .deadline = deadline()}, request_, std::move(done));
      }
    });
    if (has_begun) return;
    {
      absl::MutexLock lock(&mutex_);
      runs_.erase(run);
    }
    EndOutOfMemory();
  }

  void OnAnswer(const std::shared_ptr<InferRun>& run, absl::StatusOr<InferAnswer> answer) {
    const bool is_kept = Guard([&] {
      const absl::Status status = caller().Narrowed(answer.status());
      if (!status.ok()) {
        if (ReasonOf(status) == error_reason::kMalformed) parts().metrics->OnCallEndedEarly(error_reason::kMalformed);
        answer = AnswerOf(status, run->request_id());
      }
      absl::MutexLock lock(&mutex_);
      if (!is_broken_ && answer.ok()) unsent_.push_back(*std::move(answer));
    });
    if (!is_kept) EndOutOfMemory();
    {
      absl::MutexLock lock(&mutex_);
      runs_.erase(run);
    }
    Advance();
  }

  // Drops unsent answers, since the client is gone.
  void DropAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    is_broken_ = true;
    unsent_.clear();
  }

  // Ends the stream when the requests that it took are answered. The first end counts.
  void Fail(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      end_ = status;
    }
    Advance();
  }

  void EndOutOfMemory() {
    Guard([this] { Fail(OutOfMemoryError()); });
  }

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
      const bool is_idle = runs_.empty() && !is_writing_ && num_starting_reads_ == 0;
      if (end_.has_value() && is_idle) is_finished_ = may_finish = true;
      if (!is_finished_) SetSilenceTimer();
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
    if (is_reading_ || has_read_all_ || end_.has_value()) return false;
    return runs_.size() + unsent_.size() < kMaxOpenRequests;
  }

  // Returns the time at which the client will have been silent for too long; InfiniteFuture while it waits for answers.
  absl::Time SilenceEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!runs_.empty() || is_writing_ || !unsent_.empty() || end_.has_value()) return absl::InfiniteFuture();
    return last_sign_ + parts().times.silence;
  }

  void SetSilenceTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time ends = SilenceEnds();
    if (ends >= timer_time_) return;
    parts().timers->Clear(timer_);
    timer_ = SetTimer(ends, &OpenInferenceStream::OnTimer);
    timer_time_ = timer_ == 0 ? absl::InfiniteFuture() : ends;
  }

  void OnTimer() {
    bool is_silent = false;
    {
      absl::MutexLock lock(&mutex_);
      timer_time_ = absl::InfiniteFuture();
      is_silent = SilenceEnds() <= absl::Now();
    }
    if (is_silent) {
      parts().metrics->OnCallEndedEarly(error_reason::kStreamIdle);
      Fail(WithReason(absl::DeadlineExceededError(
                          absl::StrCat("no request came within ", absl::FormatDuration(parts().times.silence))),
                      error_reason::kStreamIdle));
    }
    Advance();
  }

  // Used only by the thread that handles a message that was read.
  grpc::ByteBuffer request_;
  bool has_message_ = false;

  InferAnswer sending_;  // being sent: owned by the thread that set is_writing_

  absl::Mutex mutex_;
  std::set<std::shared_ptr<InferRun>> runs_ ABSL_GUARDED_BY(mutex_);  // requests that are not answered
  std::deque<InferAnswer> unsent_ ABSL_GUARDED_BY(mutex_);
  Timers::Id timer_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time timer_time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // when timer_ is due
  absl::Time last_sign_ ABSL_GUARDED_BY(mutex_);                            // when a message was last received or sent
  int num_starting_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that are about to call StartRead, or in it
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing can be sent any more
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Set and changed under mutex_ until is_finished_ is set; constant afterwards.
  std::optional<absl::Status> end_;
};

}  // namespace

std::shared_ptr<Call> MakeOpenInferenceStream(const ServiceParts* parts, grpc::CallbackServerContext* context) {
  return std::make_shared<OpenInferenceStream>(parts, context);
}

}  // namespace voxserve
