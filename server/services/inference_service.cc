#include "server/services/inference_service.h"

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/serving/admission/drop_reason.h"
#include "server/codec/codec.h"
#include "server/codec/grpc_status.h"

namespace voxserve {
// One Infer. gRPC calls OnCancel and OnDone after Infer has returned, and OnDone last; `done` may come at any time
// after Submit was called, within it too.
class InferenceService::InferCall final : public grpc::ServerUnaryReactor {
 public:
  InferCall(InferenceService* service, grpc::CallbackServerContext* context, v1::InferRequest* request,
            v1::InferResponse* response)
      : service_(service),
        context_(context),
        request_(request),
        response_(response),
        deadline_(DeadlineOf(*context)),
        telemetry_({.model = request->model(),
                    .version = request->version(),
                    .request_id = request->request_id(),
                    .peer = context->peer()},
                   service->answer_options_) {}

  void Start() {
    const absl::Status accepted = service_->limits_.AcceptCall();
    accepted_ = accepted.ok();
    if (!accepted_) {
      if (const auto reason = DropReasonOf(accepted)) service_->metrics_->OnDropped(request_->model(), *reason);
      return Fail(accepted);
    }
    if (!request_->has_cloud()) {
      return Fail(WithReason(absl::InvalidArgumentError("the request has no cloud"), error_reason::kMissingCloud));
    }
    absl::StatusOr<PointCloud> cloud = telemetry_.Decode(request_->mutable_cloud());
    if (!cloud.ok()) return Fail(cloud.status());
    absl::StatusOr<InferTask> task = DecodeRequest(*request_, *std::move(cloud));
    if (!task.ok()) return Fail(task.status());
    task->deadline = deadline_;
    task->done = [this](absl::StatusOr<InferResult> result) { OnResult(std::move(result)); };
    ticket_ = service_->engine_->Submit(*std::move(task));
    submitted_ = true;
  }

  void OnCancel() override {
    cancelled_ = true;
    if (submitted_) service_->engine_->Cancel(ticket_);
  }

  void OnDone() override {
    service_->limits_.ReleaseAnswer(answer_bytes_);
    if (accepted_) service_->limits_.ReleaseCall();
    delete this;
  }

 private:
  void OnResult(absl::StatusOr<InferResult> result) {
    const bool is_unwanted = cancelled_ && (result.ok() || absl::IsCancelled(result.status()));
    if (is_unwanted) {
      if (absl::Now() >= deadline_) {
        return Fail(WithReason(absl::DeadlineExceededError("the deadline passed before the answer was ready"),
                               error_reason::kDeadlineExpired));
      }
      return Fail(WithReason(absl::CancelledError("the client cancelled"), error_reason::kCancelled));
    }
    if (!result.ok()) return Fail(result.status());

    response_->set_request_id(request_->request_id());
    const absl::StatusOr<int64_t> bytes = telemetry_.Answer(*std::move(result), response_);
    if (!bytes.ok()) return End(ToGrpcStatus(bytes.status(), context_));
    answer_bytes_ = *bytes;
    End(grpc::Status::OK);
  }

  void Fail(const absl::Status& status) {
    const grpc::Status answer = ToGrpcStatus(status, context_);
    if (IsRefusal()) {
      telemetry_.Refuse(status);
    } else {
      telemetry_.Fail(status);
    }
    End(answer);
  }

  void End(const grpc::Status& answer) {
    if (accepted_) service_->limits_.StartAnswer();
    Finish(answer);
  }

  // Whether the task was never let in: the engine says so within Submit, on the thread that called it.
  bool IsRefusal() const { return std::this_thread::get_id() == receiver_ && !submitted_; }

  InferenceService* const service_;
  grpc::CallbackServerContext* const context_;
  v1::InferRequest* const request_;
  v1::InferResponse* const response_;
  const absl::Time deadline_;
  const std::thread::id receiver_ = std::this_thread::get_id();
  RequestTelemetry telemetry_;
  bool accepted_ = false;
  bool submitted_ = false;  // written by the receiver's thread, within Infer
  uint64_t ticket_ = 0;
  int64_t answer_bytes_ = 0;
  std::atomic<bool> cancelled_{false};
};

InferenceService::InferenceService(const Options& options, Engine* engine, Metrics* metrics)
    : engine_(engine),
      metrics_(metrics),
      limits_(options.limits),
      answer_options_({.max_message_bytes = options.max_response_bytes,
                       .limits = &limits_,
                       .metrics = metrics,
                       .failure_log = &failure_log_}),
      streams_(answer_options_, engine) {}

grpc::ServerUnaryReactor* InferenceService::Infer(grpc::CallbackServerContext* context, const v1::InferRequest* request,
                                                  v1::InferResponse* response) {
  // The request is this call's alone and was not made const: its points are moved out rather than copied.
  auto* call = new InferCall(this, context, const_cast<v1::InferRequest*>(request), response);
  call->Start();
  return call;
}

InferStreams::Reactor* InferenceService::InferStream(grpc::CallbackServerContext* context) {
  return streams_.Open(context);
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest* /*request*/,
                                                       v1::ListModelsResponse* response) {
  for (const ModelVersionInfo& info : engine_->ListModels()) EncodeModel(info, response->add_models());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest* request,
                                                     v1::GetModelResponse* response) {
  const absl::StatusOr<ModelVersionInfo> info = engine_->GetModel(request->model(), request->version());
  if (info.ok()) EncodeModel(*info, response->mutable_model());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(info.status(), context));
  return reactor;
}

void InferenceService::StartDraining() {
  limits_.StartDraining();
  streams_.StartDraining();
}

int64_t InferenceService::AwaitAnswers(absl::Time deadline) { return limits_.AwaitReleases(deadline); }

}  // namespace voxserve
