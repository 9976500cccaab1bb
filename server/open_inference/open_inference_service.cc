#include "server/open_inference/open_inference_service.h"

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "open_inference.pb.h"
#include "server/calls/infer_call.h"
#include "server/calls/model_call.h"
#include "server/codec/open_inference.h"
#include "server/open_inference/open_inference_format.h"

namespace voxserve {
namespace {

constexpr char kLoad[] = "RepositoryModelLoad";
constexpr char kUnload[] = "RepositoryModelUnload";

const std::string& ServicePath() {
  static const auto* const path = new std::string(absl::StrCat("/", kOpenInferenceServiceName, "/"));
  return *path;
}

template <typename Request>
absl::StatusOr<AskedModel> ReadRequest(const Request& request) {
  RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  for (const auto& [name, value] : request.parameters()) {
    const bool is_known =
        std::is_same_v<Request, inference::RepositoryModelUnloadRequest> && name == "unload_dependents";
    if (is_known) continue;
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat(
            "parameter ", Quoted(name), " is not served: a model's configuration and files are those of its folder")),
        error_reason::kBadParameter);
  }
  return AskedModel{.name = request.model_name()};
}

template <typename Response>
void WriteNothing(const std::vector<int64_t>& /*versions*/, Response* /*response*/) {}

}  // namespace

void AddOpenInferenceService(const CallEnvironment* environment, RpcRouter* router) {
  const std::string& service = ServicePath();
  AddOpenInferenceLookups(service, environment, router);
  AddSharedMemoryLookups(service, environment, router);
  router->Add(service + "ModelInfer", Access::kInfer, [environment](grpc::CallbackServerContext* context) {
    return std::make_shared<InferCall>(environment, context, std::make_unique<OpenInferenceFormat>());
  });
  router->Add(service + "ModelStreamInfer", Access::kInfer, [environment](grpc::CallbackServerContext* context) {
    return MakeOpenInferenceStream(environment, context);
  });
  for (const char* method : {kLoad, kUnload}) {
    router->AddElsewhere(absl::StrCat(kOpenInferenceServiceName, "/", method),
                         "it is on the operators' port, --admin_port of the server");
  }
}

void AddOpenInferenceAdmin(const CallEnvironment* environment, RpcRouter* router) {
  const std::string& service = ServicePath();
  AddOpenInferenceLookups(service, environment, router);
  AddModelCall<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>(
      service, {.name = kLoad, .start = StartLoad, .read = ReadRequest, .write = WriteNothing}, environment, router);
  AddModelCall<inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse>(
      service, {.name = kUnload, .start = StartUnload, .read = ReadRequest, .write = WriteNothing}, environment,
      router);
}

}  // namespace voxserve
