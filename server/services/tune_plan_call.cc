#include "server/services/tune_plan_call.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "server/codec/grpc_status.h"
#include "server/services/request_telemetry.h"

namespace voxserve {
namespace {

constexpr double kMaxWaitSeconds = 3600;

// The request as the engine wants it, without callbacks. Models and versions are the engine's to know.
absl::StatusOr<TuneTask> DecodeTask(const v1::TunePlanRequest& request) {
  TuneTask task{.model = request.model(), .version = request.version(), .on_progress = {}, .done = {}};
  if (request.num_scans() < 0 || request.num_scans() > Engine::kMaxTuneScans) {
    return absl::InvalidArgumentError(absl::StrCat("num_scans is ", request.num_scans(), ", must be 1 to ",
                                                   Engine::kMaxTuneScans, ", or 0 for the default"));
  }
  if (request.num_scans() != 0) task.num_scans = request.num_scans();
  // Not in this range: NaN too.
  if (!(request.max_wait_seconds() >= 0 && request.max_wait_seconds() <= kMaxWaitSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("max_wait_seconds is ", request.max_wait_seconds(),
                                                   ", must be more than 0 and at most ", kMaxWaitSeconds,
                                                   ", or 0 for the default"));
  }
  if (request.max_wait_seconds() != 0) task.max_wait = absl::Seconds(request.max_wait_seconds());
  return task;
}

v1::TunePlanUpdate Encode(const TuneProgress& progress) {
  v1::TunePlanUpdate update;
  update.mutable_progress()->set_stage(progress.stage);
  update.mutable_progress()->set_fraction(std::clamp(progress.fraction, 0.0, 1.0));
  return update;
}

v1::TunePlanUpdate Encode(const TuneResult& result) {
  v1::TunePlanUpdate update;
  v1::TunePlanResult& message = *update.mutable_result();
  message.set_device(result.device);
  message.set_num_scans(static_cast<uint32_t>(result.num_scans));
  for (const TuneBucket& bucket : result.buckets) {
    v1::TunedBucket& one = *message.add_buckets();
    one.set_min_voxels(static_cast<uint64_t>(bucket.min_voxels));
    one.set_max_voxels(static_cast<uint64_t>(bucket.max_voxels));
    one.set_num_scans(static_cast<uint32_t>(bucket.num_scans));
    one.set_default_ms(absl::ToDoubleMilliseconds(bucket.default_time));
    one.set_tuned_ms(absl::ToDoubleMilliseconds(bucket.tuned_time));
  }
  message.set_seconds(absl::ToDoubleSeconds(result.search_time));
  message.set_path(result.path);
  return update;
}

absl::Status Draining() {
  return WithReason(absl::UnavailableError("the server is shutting down"), error_reason::kDraining);
}

// One TunePlan. It is the service's (until OnDone, the last that gRPC calls) and the engine's (until that has let go of
// the task, which may be later: what it tells after the call's end is dropped).
class TunePlanCall final : public grpc::ServerWriteReactor<v1::TunePlanUpdate>,
                           public AdminCall,
                           public std::enable_shared_from_this<TunePlanCall> {
 public:
  TunePlanCall(Engine* engine, AdminCalls* calls, grpc::CallbackServerContext* context,
               const v1::TunePlanRequest& request)
      : engine_(engine),
        calls_(calls),
        context_(context),
        peer_(context->peer()),
        model_(request.model()),
        version_(request.version()) {}

  void Start(const v1::TunePlanRequest& request) {
    if (!calls_->Hold(shared_from_this())) return End(Draining());
    absl::StatusOr<TuneTask> task = DecodeTask(request);
    if (!task.ok()) return End(task.status());
    Log(LogLevel::kInfo, "asked for a tuned plan",
        {{"model", Clipped(model_)},
         {"version", version_},
         {"scans", task->num_scans},
         {"max_wait", absl::FormatDuration(task->max_wait)},
         {"peer", peer_}});
    task->on_progress = [self = shared_from_this()](const TuneProgress& progress) { self->OnProgress(progress); };
    task->done = [self = shared_from_this()](const absl::StatusOr<TuneResult>& result) { self->End(result); };
    const uint64_t ticket = engine_->Tune(*std::move(task));
    bool has_ended = false;
    {
      absl::MutexLock lock(&mutex_);
      ticket_ = ticket;
      has_ended = end_.has_value();
    }
    // A drain may have ended the call before there was a ticket to end the search by.
    if (has_ended) engine_->CancelTune(ticket);
  }

  // Ends the call and its search.
  void Abort(const absl::Status& status) {
    End(status);
    std::optional<uint64_t> ticket;
    {
      absl::MutexLock lock(&mutex_);
      ticket = ticket_;
    }
    if (ticket.has_value()) engine_->CancelTune(*ticket);
  }

  void Drain() override { Abort(Draining()); }

  void OnCancel() override {
    Abort(WithReason(absl::CancelledError("the client cancelled, or its deadline passed"), error_reason::kCancelled));
  }

  // ok = false: the client is gone, and OnCancel says so.
  void OnWriteDone(bool /*ok*/) override {
    {
      absl::MutexLock lock(&mutex_);
      is_writing_ = false;
    }
    Advance();
  }

  void OnDone() override { calls_->Release(shared_from_this()); }

 private:
  void OnProgress(const TuneProgress& progress) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      next_ = Encode(progress);
    }
    Advance();
  }

  // The first end counts.
  void End(const absl::StatusOr<TuneResult>& result) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      end_ = result.status();
      if (result.ok()) last_ = Encode(*result);
      next_.reset();
    }
    if (!result.ok()) LogFailure(result.status());
    Advance();
  }

  // Writes what waits, unless a message is on its way.
  void Advance() {
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
    // Nobody else writes or finishes now, and what is sent stays as it is.
    if (!may_finish) {
      StartWrite(&message_);
    } else if (end_->ok()) {
      StartWriteAndFinish(&last_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      Finish(ToGrpcStatus(*end_, context_));
    }
  }

  // What the engine found it says itself.
  void LogFailure(const absl::Status& status) const {
    Log(LogLevel::kInfo, "not tuned",
        {{"model", Clipped(model_)},
         {"version", version_},
         {"code", absl::StatusCodeToString(status.code())},
         {"reason", ReasonOf(status)},
         {"message", Clipped(status.message())},
         {"seconds", absl::ToDoubleSeconds(absl::Now() - started_)},
         {"peer", peer_}});
  }

  Engine* const engine_;
  AdminCalls* const calls_;
  grpc::CallbackServerContext* const context_;
  const std::string peer_;
  const std::string model_;
  const int64_t version_;
  const absl::Time started_ = absl::Now();

  absl::Mutex mutex_;
  std::optional<uint64_t> ticket_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::TunePlanUpdate> next_ ABSL_GUARDED_BY(mutex_);  // waits for the message on its way
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Set under mutex_ and then constant.
  std::optional<absl::Status> end_;
  v1::TunePlanUpdate last_;
  v1::TunePlanUpdate message_;  // on its way: whoever set is_writing_ owns it
};

}  // namespace

grpc::ServerWriteReactor<v1::TunePlanUpdate>* StartTunePlan(Engine* engine, AdminCalls* calls,
                                                            grpc::CallbackServerContext* context,
                                                            const v1::TunePlanRequest& request) {
  const auto call = std::make_shared<TunePlanCall>(engine, calls, context, request);
  call->Start(request);
  return call.get();
}

}  // namespace voxserve
