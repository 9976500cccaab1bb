#include "server/inference_service.h"

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "server/codec.h"
#include "server/grpc_status.h"

namespace voxserve {
namespace {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

absl::Status QueueFull(std::string message) {
  constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);
  return WithRetryDelay(WithReason(absl::ResourceExhaustedError(std::move(message)), error_reason::kQueueFull),
                        kRetryDelay);
}

// What a client chose may be long; a log line need not be.
std::string Clipped(const std::string& text) {
  constexpr size_t kMaxBytes = 128;
  return text.size() <= kMaxBytes ? text : absl::StrCat(text.substr(0, kMaxBytes), "...");
}

// Faults of the caller are news; faults of the server are warnings.
LogLevel LevelOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return LogLevel::kInfo;
    default:
      return LogLevel::kWarning;
  }
}

}  // namespace

// One Infer. gRPC calls OnCancel and OnDone after Infer has returned, and OnDone last; `done` may come at any time
// after Submit was called, within it too.
class InferenceService::InferCall final : public grpc::ServerUnaryReactor {
 public:
  InferCall(InferenceService* service, grpc::CallbackServerContext* context, v1::InferRequest* request,
            v1::InferResponse* response)
      : service_(service), context_(context), request_(request), response_(response), deadline_(DeadlineOf(*context)) {}

  void Start() {
    const absl::Status accepted = service_->Accept();
    accepted_ = accepted.ok();
    if (!accepted_) {
      service_->metrics_->OnDropped(request_->model(), absl::IsUnavailable(accepted) ? "draining" : "queue_full");
      return Fail(accepted);
    }
    if (!request_->has_cloud()) {
      return Fail(WithReason(absl::InvalidArgumentError("the request has no cloud"), error_reason::kMissingCloud));
    }
    v1::PointCloud* const message = request_->mutable_cloud();
    num_points_ = message->num_points();
    stamp_ = StampOf(*message);
    absl::StatusOr<PointCloud> cloud = DecodeCloud(message);
    decode_time_ = absl::Now() - started_;
    if (!cloud.ok()) return Fail(cloud.status());
    ticket_ = service_->engine_->Submit(
        {.model = request_->model(),
         .version = request_->version(),
         .cloud = *std::move(cloud),
         .return_scores = request_->return_scores(),
         .deadline = deadline_,
         .done = [this](absl::StatusOr<InferResult> result) { OnResult(std::move(result)); }});
    submitted_ = true;
  }

  void OnCancel() override {
    cancelled_ = true;
    if (submitted_) service_->engine_->Cancel(ticket_);
  }

  void OnDone() override {
    if (accepted_) service_->Release(answer_bytes_);
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

    const absl::Time encode_start = absl::Now();
    response_->set_request_id(request_->request_id());
    AppendStage("decode", decode_time_, response_);
    EncodeResult(*result, response_);
    const int64_t bytes = static_cast<int64_t>(response_->ByteSizeLong());
    if (bytes > service_->options_.max_response_bytes) {
      response_->Clear();
      return Fail(WithReason(absl::ResourceExhaustedError(
                                 absl::StrCat("the response takes ", bytes, " bytes, more than the server's limit ",
                                              "of ", service_->options_.max_response_bytes, " (--max_message_bytes)")),
                             error_reason::kResponseTooLarge));
    }
    if (const absl::Status held = service_->HoldAnswer(bytes); !held.ok()) {
      response_->Clear();
      return Fail(held);
    }
    answer_bytes_ = bytes;
    const absl::Time now = absl::Now();
    const absl::Duration encode_time = now - encode_start;
    AppendStage("encode", encode_time, response_);

    Metrics& metrics = *service_->metrics_;
    metrics.OnStage(result->model, "decode", decode_time_);
    metrics.OnStage(result->model, "encode", encode_time);
    metrics.OnRequest(result->model, result->version, absl::StatusCode::kOk, now - started_);
    if (stamp_ != absl::InfinitePast()) metrics.OnFrameAge(result->model, now - stamp_);
    Log(LogLevel::kDebug, "answered",
        {{"model", result->model},
         {"version", result->version},
         {"points", num_points_},
         {"voxels", result->counts.voxels},
         {"ms", absl::ToDoubleMilliseconds(now - started_)},
         {"request_id", Clipped(request_->request_id())},
         {"frame_id", Clipped(request_->cloud().frame_id())},
         {"peer", context_->peer()}});
    Finish(grpc::Status::OK);
  }

  void Fail(const absl::Status& status) {
    const absl::Duration duration = absl::Now() - started_;
    service_->metrics_->OnRequest(request_->model(), request_->version(), status.code(), duration);
    Log(LevelOf(status.code()), "not answered",
        {{"model", Clipped(request_->model())},
         {"version", request_->version()},
         {"code", absl::StatusCodeToString(status.code())},
         {"reason", ReasonOf(status)},
         {"message", Clipped(std::string(status.message()))},
         {"points", num_points_},
         {"ms", absl::ToDoubleMilliseconds(duration)},
         {"request_id", Clipped(request_->request_id())},
         {"peer", context_->peer()}});
    Finish(ToGrpcStatus(status, context_));
  }

  InferenceService* const service_;
  grpc::CallbackServerContext* const context_;
  v1::InferRequest* const request_;
  v1::InferResponse* const response_;
  const absl::Time started_ = absl::Now();
  const absl::Time deadline_;
  absl::Time stamp_ = absl::InfinitePast();
  absl::Duration decode_time_;
  uint64_t num_points_ = 0;
  bool accepted_ = false;
  bool submitted_ = false;
  uint64_t ticket_ = 0;
  int64_t answer_bytes_ = 0;
  std::atomic<bool> cancelled_{false};
};

grpc::ServerUnaryReactor* InferenceService::Infer(grpc::CallbackServerContext* context, const v1::InferRequest* request,
                                                  v1::InferResponse* response) {
  // The request is this call's alone and was not made const: its points are moved out rather than copied.
  auto* call = new InferCall(this, context, const_cast<v1::InferRequest*>(request), response);
  call->Start();
  return call;
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
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

int64_t InferenceService::AwaitAnswers(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(
                               +[](int64_t* num_accepted) { return *num_accepted == 0; }, &num_accepted_),
                           deadline);
  return num_accepted_;
}

absl::Status InferenceService::Accept() {
  absl::MutexLock lock(&mutex_);
  if (draining_) {
    return WithReason(absl::UnavailableError("the server is shutting down"), error_reason::kDraining);
  }
  if (num_accepted_ >= options_.max_accepted_requests) {
    return QueueFull(absl::StrCat("the server holds ", num_accepted_, " requests that wait, run or have answers to ",
                                  "send; its limit is ", options_.max_accepted_requests));
  }
  ++num_accepted_;
  return absl::OkStatus();
}

absl::Status InferenceService::HoldAnswer(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (unsent_bytes_ > 0 && unsent_bytes_ + bytes > options_.max_unsent_bytes) {
    return QueueFull(absl::StrCat("answers of ", unsent_bytes_, " bytes wait for their clients to read them; with ",
                                  bytes, " more they exceed the server's limit of ", options_.max_unsent_bytes,
                                  " (--grpc_memory_bytes)"));
  }
  unsent_bytes_ += bytes;
  return absl::OkStatus();
}

void InferenceService::Release(int64_t answer_bytes) {
  absl::MutexLock lock(&mutex_);
  --num_accepted_;
  unsent_bytes_ -= answer_bytes;
}

}  // namespace voxserve
