#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "server/calls/audit.h"
#include "server/calls/request_telemetry.h"
#include "server/codec/message_parser.h"
#include "server/services/services.h"
#include "voxserve/v1/admin.pb.h"

namespace voxserve {
namespace {

constexpr double kMaxWaitSeconds = 600;

// Converts the request to the engine's task, without callbacks. The engine checks the model and version.
absl::StatusOr<TuneTask> DecodeTask(const v1::TunePlanRequest& request) {
  TuneTask task{.model = request.model(), .version = request.version(), .on_progress = {}, .done = {}};
  if (request.num_scans() < 0 || request.num_scans() > Engine::kMaxTuneScans) {
    return absl::InvalidArgumentError(absl::StrCat("num_scans is ", request.num_scans(), ", must be 1 to ",
                                                   Engine::kMaxTuneScans, ", or 0 for the default"));
  }
  if (request.num_scans() != 0) task.num_scans = request.num_scans();
  // The condition is written so that it also refuses NaN.
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

// One call of TunePlan. The engine's callbacks may keep this object longer than gRPC does. Results that the engine
// reports after the call's end are dropped.
class TunePlanCall final : public RequestCall {
 public:
  TunePlanCall(const CallEnvironment* environment, grpc::CallbackServerContext* context)
      : RequestCall(environment, context, CallKind::kRequest) {}

  void Drain() override {
    RequestCall::Drain();
    Abort(DrainingError());
  }

 private:
  std::shared_ptr<TunePlanCall> self() { return std::static_pointer_cast<TunePlanCall>(shared_from_this()); }

  void OnRequest(const grpc::ByteBuffer& bytes) override {
    if (const absl::Status status = Begin(bytes); !status.ok()) End(status);
  }

  absl::Status Begin(const grpc::ByteBuffer& bytes) {
    RETURN_IF_ERROR(ParseMessage(bytes, kMaxSmallMessageBytes, &request_));
    has_request_ = true;
    ASSIGN_OR_RETURN(TuneTask task, DecodeTask(request_));
    if (const auto left_out = environment().log_limiter->Admit("TunePlan"); left_out.has_value()) {
      Log(LogLevel::kInfo, "asked for a tuned plan",
          {{"model", Clipped(request_.model())},
           {"version", request_.version()},
           {"scans", task.num_scans},
           {"max_wait", absl::FormatDuration(task.max_wait)},
           {"who", client()},
           {"peer", source()},
           TraceIdField(trace()),
           SpanIdField(trace()),
           {"left_out", *left_out}});
    }
    task.on_progress = [self = self()](const TuneProgress& progress) { self->OnProgress(progress); };
    task.done = [self = self()](const absl::StatusOr<TuneResult>& result) { self->OnResult(result); };
    const uint64_t ticket = environment().engine->Tune(std::move(task));
    {
      absl::MutexLock lock(&mutex_);
      ticket_ = ticket;
    }
    // A drain may have ended the call before it had a ticket to cancel the search with.
    if (has_ended()) environment().engine->CancelTune(ticket);
    return absl::OkStatus();
  }

  // Ends the call and cancels its search.
  void Abort(const absl::Status& status) {
    End(status);
    std::optional<uint64_t> ticket;
    {
      absl::MutexLock lock(&mutex_);
      ticket = ticket_;
    }
    if (ticket.has_value()) environment().engine->CancelTune(*ticket);
  }

  void OnAbandoned(const absl::Status& why) override { Abort(why); }

  void OnProgress(const TuneProgress& progress) {
    absl::StatusOr<grpc::ByteBuffer> message = Serialize(Encode(progress));
    if (message.ok()) Update(*std::move(message));
  }

  void OnResult(const absl::StatusOr<TuneResult>& result) {
    if (!result.ok()) {
      End(result.status());
      return;
    }
    EndWith(Encode(*result));
  }

  void OnEnded(const absl::Status& status) override {
    Audit("TunePlan", *this, has_request_ ? request_.model() : "", has_request_ ? request_.version() : 0, status,
          SteadyNow() - began());
  }

  v1::TunePlanRequest request_;  // constant once has_request_ is set; a drain may end the call before that
  std::atomic<bool> has_request_{false};

  absl::Mutex mutex_;
  std::optional<uint64_t> ticket_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Call> MakeTunePlanCall(const CallEnvironment* environment, grpc::CallbackServerContext* context) {
  return std::make_shared<TunePlanCall>(environment, context);
}

}  // namespace voxserve
