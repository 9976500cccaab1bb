#include "server/services/open_inference_service.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/services/infer_call.h"
#include "server/services/open_inference_format.h"
#include "server/services/open_inference_lookups.h"
#include "server/services/open_inference_stream.h"

namespace voxserve {

void AddOpenInferenceService(const ServiceParts* parts, RpcRouter* router) {
  const std::string service = absl::StrCat("/", kOpenInferenceServiceName, "/");
  AddOpenInferenceLookups(service, parts, router);
  router->Add(service + "ModelInfer", Access::kInfer, [parts](grpc::CallbackServerContext* context) {
    return std::make_shared<InferCall>(parts, context, std::make_unique<OpenInferenceFormat>());
  });
  router->Add(service + "ModelStreamInfer", Access::kInfer,
              [parts](grpc::CallbackServerContext* context) { return MakeOpenInferenceStream(parts, context); });
}

}  // namespace voxserve
