#include "server/services/admin_service.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "server/codec/message_parser.h"
#include "server/services/audit.h"
#include "server/services/call.h"
#include "server/services/tune_plan_call.h"
#include "voxserve/v1/admin.pb.h"

namespace voxserve {
namespace {

using VersionsDone = std::function<void(absl::StatusOr<std::vector<int64_t>>)>;

// One LoadModel or UnloadModel. The engine, the client or the drain may end it; the first end counts.
template <typename Request, typename Response>
class ModelCall final : public RequestCall {
 public:
  // start hands the task to the engine. `what`: "LoadModel", "UnloadModel"; for the audit.
  using Start = void (*)(Engine* engine, const Request& request, VersionsDone done);

  ModelCall(const ServiceParts* parts, grpc::CallbackServerContext* context, const char* what, Start start)
      : RequestCall(parts, context, CallKind::kRequest), what_(what), start_(start) {}

  void Drain() override {
    RequestCall::Drain();
    End(DrainingError());
  }

 private:
  void OnRequest(const grpc::ByteBuffer& bytes) override {
    if (const absl::Status status = ParseMessage(bytes, kMaxSmallMessageBytes, &request_); !status.ok()) {
      End(status);
      return;
    }
    has_request_ = true;
    start_(parts().engine, request_,
           [self = std::static_pointer_cast<ModelCall>(shared_from_this())](
               const absl::StatusOr<std::vector<int64_t>>& versions) { self->OnVersions(versions); });
  }

  void OnVersions(const absl::StatusOr<std::vector<int64_t>>& versions) {
    if (!versions.ok()) {
      End(versions.status());
      return;
    }
    Response response;
    response.mutable_versions()->Add(versions->begin(), versions->end());
    EndWith(response);
  }

  void OnEnded(const absl::Status& status) override {
    Audit(what_, *this, has_request_ ? request_.model() : "", has_request_ ? request_.version() : 0, status,
          absl::Now() - began());
  }

  const std::string what_;
  const Start start_;
  Request request_;  // constant once has_request_ is set; a drain may end the call before that
  std::atomic<bool> has_request_{false};
};

void StartLoad(Engine* engine, const v1::LoadModelRequest& request, VersionsDone done) {
  engine->Load({.model = request.model(), .version = request.version(), .done = std::move(done)});
}

void StartUnload(Engine* engine, const v1::UnloadModelRequest& request, VersionsDone done) {
  engine->Unload({.model = request.model(), .version = request.version(), .done = std::move(done)});
}

}  // namespace

void AddAdminService(const ServiceParts* parts, RpcRouter* router) {
  const std::string service = absl::StrCat("/", kAdminServiceName, "/");
  router->Add(service + "TunePlan", Access::kAdmin,
              [parts](grpc::CallbackServerContext* context) { return MakeTunePlanCall(parts, context); });
  router->Add(service + "LoadModel", Access::kAdmin, [parts](grpc::CallbackServerContext* context) {
    return std::make_shared<ModelCall<v1::LoadModelRequest, v1::LoadModelResponse>>(parts, context, "LoadModel",
                                                                                    StartLoad);
  });
  router->Add(service + "UnloadModel", Access::kAdmin, [parts](grpc::CallbackServerContext* context) {
    return std::make_shared<ModelCall<v1::UnloadModelRequest, v1::UnloadModelResponse>>(parts, context, "UnloadModel",
                                                                                        StartUnload);
  });
}

}  // namespace voxserve
