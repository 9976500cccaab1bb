#include "server/services/inference_service.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/serving/admission/drop_reason.h"
#include "server/codec/codec.h"
#include "server/codec/message_parser.h"
#include "server/services/call.h"
#include "server/services/infer_stream.h"
#include "server/services/request_telemetry.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {
namespace {

// One Infer.
class InferCall final : public RequestCall {
 public:
  using RequestCall::RequestCall;

 private:
  std::shared_ptr<InferCall> self() { return std::static_pointer_cast<InferCall>(shared_from_this()); }

  void OnRequest(const grpc::ByteBuffer& bytes) override {
    const absl::Status status = Submit(bytes);
    if (status.ok()) return;
    if (!telemetry_.has_value()) SetTelemetry({});
    telemetry_->Refuse(status);
    End(status);
  }

  // Hands the request to the engine, or returns why it is refused. The engine may also refuse it, by a call of `done`.
  absl::Status Submit(const grpc::ByteBuffer& bytes) {
    RETURN_IF_ERROR(HoldRequest(static_cast<int64_t>(bytes.Length())));
    v1::InferRequest request;
    HostBuffer data;
    const auto allocate = [this](int64_t size) { return parts().engine->AllocateCloud(size, BufferLife::kRequest); };
    RETURN_IF_ERROR(ParseInferRequest(bytes, allocate, &request, &data));
    RETURN_IF_ERROR(HoldRequest(static_cast<int64_t>(request.SpaceUsedLong()) + data.size()));
    SetTelemetry(request);
    RETURN_IF_ERROR(
        CheckMayInfer(caller(), *parts().engine, request.model(), request.version(), PriorityOf(request.priority())));
    if (!request.has_cloud()) {
      return WithReason(absl::InvalidArgumentError("the request has no cloud"), error_reason::kMissingCloud);
    }
    ASSIGN_OR_RETURN(PointCloud cloud, telemetry_->Decode(request.mutable_cloud(), std::move(data)));
    ASSIGN_OR_RETURN(InferTask task, DecodeRequest(request, std::move(cloud)));
    request_id_ = request.request_id();
    task.client = client();
    task.client_share = caller().share();
    task.deadline = deadline();
    task.done = [self = self()](absl::StatusOr<InferResult> result) {
      if (!self->Guard([&] { self->OnResult(std::move(result)); })) self->End(OutOfMemoryError());
    };
    {
      absl::MutexLock lock(&mutex_);
      is_submitting_ = true;
    }
    const uint64_t ticket = parts().engine->Submit(std::move(task));
    bool is_abandoned = false;
    {
      absl::MutexLock lock(&mutex_);
      is_submitting_ = false;
      ticket_ = ticket;
      is_abandoned = abandoned_.has_value();
    }
    if (is_abandoned) parts().engine->Cancel(ticket);
    return absl::OkStatus();
  }

  // Holds so many bytes for the request, in place of those held before.
  absl::Status HoldRequest(int64_t bytes) {
    absl::StatusOr<HeldBytes> held = parts().bytes->Hold(ByteKind::kRequest, client(), bytes, request_bytes_.bytes());
    if (held.ok()) {
      request_bytes_ = *std::move(held);
    } else if (const auto reason = DropReasonOf(held.status())) {
      parts().metrics->OnDropped("", *reason);
    }
    return held.status();
  }

  void SetTelemetry(const v1::InferRequest& request) {
    telemetry_.emplace(RequestTelemetry::Names{.model = request.model(),
                                               .version = request.version(),
                                               .request_id = request.request_id(),
                                               .peer = source(),
                                               .client = client()},
                       parts());
  }

  void OnAbandoned(const absl::Status& why) override {
    std::optional<uint64_t> ticket;
    {
      absl::MutexLock lock(&mutex_);
      abandoned_ = why;
      ticket = ticket_;
    }
    if (ticket.has_value()) parts().engine->Cancel(*ticket);
  }

  void OnResult(absl::StatusOr<InferResult> result) {
    bool is_refusal = false;
    std::optional<absl::Status> abandoned;
    {
      absl::MutexLock lock(&mutex_);
      // An error during Submit means that the engine refused the task.
      is_refusal = is_submitting_ && !result.ok();
      abandoned = abandoned_;
    }
    request_bytes_.Release();
    absl::Status status = result.status();
    if (abandoned.has_value() && (result.ok() || absl::IsCancelled(status))) status = *abandoned;
    if (!status.ok()) {
      is_refusal ? telemetry_->Refuse(status) : telemetry_->Fail(status);
      End(status);
      return;
    }
    v1::InferResponse response;
    response.set_request_id(request_id_);
    absl::StatusOr<HeldBytes> held = telemetry_->Answer(*std::move(result), &response);
    if (!held.ok()) {
      End(held.status());
      return;
    }
    EndWith(response, *std::move(held));
  }

  // Set before the engine has the task.
  std::optional<RequestTelemetry> telemetry_;
  std::string request_id_;
  HeldBytes request_bytes_;

  absl::Mutex mutex_;
  bool is_submitting_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> ticket_ ABSL_GUARDED_BY(mutex_);  // set when Submit has returned
  std::optional<absl::Status> abandoned_
      ABSL_GUARDED_BY(mutex_);  // set when no client waits for the answer: the reason
};

// A call that is answered at once, with the engine's information about its models.
template <typename Request, typename Response>
class LookupCall final : public RequestCall {
 public:
  using Lookup = absl::Status (*)(const Engine& engine, const Caller& caller, const Request& request,
                                  Response* response);

  LookupCall(const ServiceParts* parts, grpc::CallbackServerContext* context, Lookup lookup)
      : RequestCall(parts, context, CallKind::kRequest), lookup_(lookup) {}

 private:
  void OnRequest(const grpc::ByteBuffer& bytes) override {
    Request request;
    Response response;
    absl::Status status = ParseMessage(bytes, kMaxSmallMessageBytes, &request);
    if (status.ok()) status = lookup_(*parts().engine, caller(), request, &response);
    if (!status.ok()) {
      End(status);
      return;
    }
    absl::StatusOr<HeldBytes> held =
        parts().bytes->Hold(ByteKind::kAnswer, client(), static_cast<int64_t>(response.ByteSizeLong()));
    if (held.ok()) {
      EndWith(response, *std::move(held));
    } else {
      End(held.status());
    }
  }

  const Lookup lookup_;
};

absl::Status ListModels(const Engine& engine, const Caller& caller, const v1::ListModelsRequest& /*request*/,
                        v1::ListModelsResponse* response) {
  for (const ModelVersionInfo& info : engine.ListModels()) {
    if (caller.SeesModel(info.name)) EncodeModel(info, response->add_models());
  }
  return absl::OkStatus();
}

absl::Status GetModel(const Engine& engine, const Caller& caller, const v1::GetModelRequest& request,
                      v1::GetModelResponse* response) {
  if (!caller.SeesModel(request.model())) return caller.CheckModel(request.model());
  ASSIGN_OR_RETURN(const ModelVersionInfo info, engine.GetModel(request.model(), request.version()));
  EncodeModel(info, response->mutable_model());
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMayInfer(const Caller& caller, const Engine& engine, const std::string& model, int64_t version,
                           int priority) {
  RETURN_IF_ERROR(caller.CheckModel(model));
  if (priority >= caller.highest_priority()) return absl::OkStatus();
  // What a request for an unknown model gets is the engine's to say.
  const absl::StatusOr<ModelVersionInfo> info = engine.GetModel(model, version);
  return info.ok() ? caller.CheckPriority(priority, info->priority_levels) : absl::OkStatus();
}

void AddInferenceService(const ServiceParts* parts, RpcRouter* router) {
  const std::string service = absl::StrCat("/", kInferenceServiceName, "/");
  router->Add(service + "Infer", Access::kInfer, [parts](grpc::CallbackServerContext* context) {
    return std::make_shared<InferCall>(parts, context, CallKind::kRequest);
  });
  router->Add(service + "InferStream", Access::kInfer,
              [parts](grpc::CallbackServerContext* context) { return MakeInferStream(parts, context); });
  router->Add(service + "ListModels", Access::kModels, [parts](grpc::CallbackServerContext* context) {
    return std::make_shared<LookupCall<v1::ListModelsRequest, v1::ListModelsResponse>>(parts, context, ListModels);
  });
  router->Add(service + "GetModel", Access::kModels, [parts](grpc::CallbackServerContext* context) {
    return std::make_shared<LookupCall<v1::GetModelRequest, v1::GetModelResponse>>(parts, context, GetModel);
  });
}

}  // namespace voxserve
