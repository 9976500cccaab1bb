#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/calls/infer_call.h"
#include "server/calls/lookup_call.h"
#include "server/codec/codec.h"
#include "server/codec/message_parser.h"
#include "server/services/services.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {
namespace {

class V1Format final : public InferFormat {
 public:
  absl::Status Parse(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* request,
                     HostBuffer* data) override {
    RETURN_IF_ERROR(ParseInferRequest(bytes, allocate, request, data));
    request_id_ = request->request_id();
    return absl::OkStatus();
  }

  absl::StatusOr<EncodedAnswer> Encode(InferResult* result, RequestCodec* codec) override {
    auto response = std::make_unique<v1::InferResponse>();
    response->set_request_id(request_id_);
    EncodedAnswer answer;
    ASSIGN_OR_RETURN(answer.held, codec->Encode(result, response.get()));
    answer.message = std::move(response);
    return answer;
  }

 private:
  std::string request_id_;
};

void Describe(const CallEnvironment& environment, const ModelVersionInfo& info, v1::ModelVersion* message) {
  EncodeModel(info, message);
  message->set_max_message_bytes(static_cast<uint64_t>(environment.max_message_bytes));
}

absl::Status ListModels(const CallEnvironment& environment, const Caller& caller,
                        const v1::ListModelsRequest& /*request*/, v1::ListModelsResponse* response) {
  for (const ModelVersionInfo& info : environment.engine->ListModels()) {
    if (caller.SeesModel(info.name)) Describe(environment, info, response->add_models());
  }
  return absl::OkStatus();
}

absl::Status GetModel(const CallEnvironment& environment, const Caller& caller, const v1::GetModelRequest& request,
                      v1::GetModelResponse* response) {
  if (!caller.SeesModel(request.model())) return caller.CheckModel(request.model());
  ASSIGN_OR_RETURN(const ModelVersionInfo info, environment.engine->GetModel(request.model(), request.version()));
  Describe(environment, info, response->mutable_model());
  return absl::OkStatus();
}

}  // namespace

void AddInferenceService(const CallEnvironment* environment, RpcRouter* router) {
  const std::string service = absl::StrCat("/", kInferenceServiceName, "/");
  router->Add(service + "Infer", Access::kInfer, [environment](grpc::CallbackServerContext* context) {
    return std::make_shared<InferCall>(environment, context, std::make_unique<V1Format>());
  });
  router->Add(service + "InferStream", Access::kInfer,
              [environment](grpc::CallbackServerContext* context) { return MakeInferStream(environment, context); });
  AddLookup(service + "ListModels", Access::kModels, CallKind::kRequest, environment, router, ListModels);
  AddLookup(service + "GetModel", Access::kModels, CallKind::kRequest, environment, router, GetModel);
}

}  // namespace voxserve
