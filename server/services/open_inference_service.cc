#include "server/services/open_inference_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "open_inference.pb.h"
#include "server/codec/open_inference.h"
#include "server/services/health_service.h"
#include "server/services/infer_call.h"
#include "server/services/lookup_call.h"
#include "server/services/open_inference_format.h"

namespace voxserve {
namespace {

absl::Status ServerLive(const ServiceParts& /*parts*/, const Caller& /*caller*/,
                        const inference::ServerLiveRequest& /*request*/, inference::ServerLiveResponse* response) {
  response->set_live(true);
  return absl::OkStatus();
}

absl::Status ServerReady(const ServiceParts& parts, const Caller& /*caller*/,
                         const inference::ServerReadyRequest& /*request*/, inference::ServerReadyResponse* response) {
  response->set_ready(parts.health->IsServing(""));
  return absl::OkStatus();
}

absl::Status ServerMetadata(const ServiceParts& parts, const Caller& /*caller*/,
                            const inference::ServerMetadataRequest& /*request*/,
                            inference::ServerMetadataResponse* response) {
  response->set_name("voxserve");
  response->set_version(parts.version);
  return absl::OkStatus();
}

// Returns the version, if the caller may see the model.
absl::StatusOr<ModelVersionInfo> FindModel(const ServiceParts& parts, const Caller& caller, const std::string& name,
                                           const std::string& version) {
  if (!caller.SeesModel(name)) return caller.CheckModel(name);
  ASSIGN_OR_RETURN(const int64_t number, ParseModelVersion(version));
  return parts.engine->GetModel(name, number);
}

absl::StatusOr<ModelVersionInfo> FindReadyModel(const ServiceParts& parts, const Caller& caller,
                                                const std::string& name, const std::string& version) {
  ASSIGN_OR_RETURN(ModelVersionInfo info, FindModel(parts, caller, name, version));
  if (info.state != ModelState::kReady) return WhyNotReady(info);
  return info;
}

absl::Status ModelReady(const ServiceParts& parts, const Caller& caller, const inference::ModelReadyRequest& request,
                        inference::ModelReadyResponse* response) {
  const absl::StatusOr<ModelVersionInfo> info = FindModel(parts, caller, request.name(), request.version());
  if (!info.ok() && !absl::IsNotFound(info.status())) return info.status();
  response->set_ready(info.ok() && info->state == ModelState::kReady);
  return absl::OkStatus();
}

absl::Status ModelMetadata(const ServiceParts& parts, const Caller& caller,
                           const inference::ModelMetadataRequest& request, inference::ModelMetadataResponse* response) {
  ASSIGN_OR_RETURN(const ModelVersionInfo info, FindReadyModel(parts, caller, request.name(), request.version()));
  response->set_name(info.name);
  response->set_platform("voxserve");
  for (const ModelVersionInfo& other : parts.engine->ListModels()) {
    const bool is_ready = other.name == info.name && other.state == ModelState::kReady;
    if (is_ready) response->add_versions(absl::StrCat(other.version));
  }
  auto& input = *response->add_inputs();
  input.set_name(std::string(kPointsInput));
  input.set_datatype("FP32");
  input.add_shape(-1);
  input.add_shape(static_cast<int64_t>(ColumnNames(info).size()));
  for (const OpenInferenceOutput& output : OutputsOf(info)) {
    auto& out = *response->add_outputs();
    out.set_name(output.name);
    out.set_datatype(output.datatype);
    out.mutable_shape()->Add(output.shape.begin(), output.shape.end());
  }
  return absl::OkStatus();
}

}  // namespace

void AddOpenInferenceService(const ServiceParts* parts, RpcRouter* router) {
  const std::string service = absl::StrCat("/", kOpenInferenceServiceName, "/");
  AddLookup(service + "ServerLive", Access::kOpen, CallKind::kInfo, parts, router, ServerLive);
  AddLookup(service + "ServerReady", Access::kOpen, CallKind::kInfo, parts, router, ServerReady);
  AddLookup(service + "ServerMetadata", Access::kAny, CallKind::kInfo, parts, router, ServerMetadata);
  AddLookup(service + "ModelReady", Access::kModels, CallKind::kInfo, parts, router, ModelReady);
  AddLookup(service + "ModelMetadata", Access::kModels, CallKind::kRequest, parts, router, ModelMetadata);
  router->Add(service + "ModelInfer", Access::kInfer, [parts](grpc::CallbackServerContext* context) {
    return std::make_shared<InferCall>(parts, context, std::make_unique<OpenInferenceFormat>());
  });
}

}  // namespace voxserve
