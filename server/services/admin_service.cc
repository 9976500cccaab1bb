#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/calls/model_call.h"
#include "server/services/services.h"
#include "voxserve/v1/admin.pb.h"

namespace voxserve {
namespace {

template <typename Request>
absl::StatusOr<AskedModel> ReadRequest(const Request& request) {
  return AskedModel{.name = request.model(), .version = request.version()};
}

template <typename Response>
void WriteVersions(const std::vector<int64_t>& versions, Response* response) {
  response->mutable_versions()->Add(versions.begin(), versions.end());
}

}  // namespace

void AddAdminService(const CallEnvironment* environment, RpcRouter* router) {
  const std::string service = absl::StrCat("/", kAdminServiceName, "/");
  router->Add(service + "TunePlan", Access::kAdmin,
              [environment](grpc::CallbackServerContext* context) { return MakeTunePlanCall(environment, context); });
  AddModelCall<v1::LoadModelRequest, v1::LoadModelResponse>(
      service, {.name = "LoadModel", .start = StartLoad, .read = ReadRequest, .write = WriteVersions}, environment,
      router);
  AddModelCall<v1::UnloadModelRequest, v1::UnloadModelResponse>(
      service, {.name = "UnloadModel", .start = StartUnload, .read = ReadRequest, .write = WriteVersions}, environment,
      router);
}

}  // namespace voxserve
