#pragma once

// ModelCall is an operator's call that loads or unloads a model: LoadModel and UnloadModel of AdminService, and
// RepositoryModelLoad and RepositoryModelUnload of the open inference protocol.
//
// - End: the call ends when the engine has finished, when the client cancels, or when the server drains (UNAVAILABLE,
//   reason DRAINING), whichever is first. The last two do not stop the engine's load or unload; its result is dropped.
// - Every ModelCall writes a line to the audit log when it ends (server/calls/audit.h).

#include <grpcpp/grpcpp.h>

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
#include "engine/base/error_reason.h"
#include "engine/base/steady_time.h"
#include "engine/serving/engine.h"
#include "server/calls/audit.h"
#include "server/calls/call.h"
#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"
#include "server/codec/message_parser.h"

namespace voxserve {

struct AskedModel {
  std::string name;
  int64_t version = 0;  // 0: the versions that the model's version policy selects; for an unload, all versions
};

// Gets the versions that are in service now; after an unload, the versions that were taken out of service.
using VersionsDone = std::function<void(absl::StatusOr<std::vector<int64_t>>)>;

// Hand the load or unload to the engine, which calls `done` once, from any thread.
void StartLoad(Engine* engine, const AskedModel& model, VersionsDone done);
void StartUnload(Engine* engine, const AskedModel& model, VersionsDone done);

// One method of a service, with its own messages.
template <typename Request, typename Response>
struct ModelMethod {
  const char* name;  // "LoadModel"; also the audit log's action
  void (*start)(Engine* engine, const AskedModel& model, VersionsDone done);  // StartLoad or StartUnload
  absl::StatusOr<AskedModel> (*read)(const Request& request);
  void (*write)(const std::vector<int64_t>& versions, Response* response);
};

template <typename Request, typename Response>
class ModelCall final : public RequestCall {
 public:
  ModelCall(const CallEnvironment* environment, grpc::CallbackServerContext* context,
            const ModelMethod<Request, Response>& method)
      : RequestCall(environment, context, CallKind::kRequest), method_(method) {}

  void Drain() override {
    RequestCall::Drain();
    End(DrainingError());
  }

 private:
  void OnRequest(const grpc::ByteBuffer& bytes) override {
    Request request;
    absl::Status status = ParseMessage(bytes, kMaxSmallMessageBytes, &request);
    if (status.ok()) {
      absl::StatusOr<AskedModel> model = method_.read(request);
      status = model.status();
      if (model.ok()) model_ = *std::move(model);
    }
    if (!status.ok()) {
      End(status);
      return;
    }
    has_model_ = true;
    method_.start(environment().engine, model_,
                  [self = std::static_pointer_cast<ModelCall>(shared_from_this())](
                      const absl::StatusOr<std::vector<int64_t>>& versions) { self->OnVersions(versions); });
  }

  void OnVersions(const absl::StatusOr<std::vector<int64_t>>& versions) {
    if (!versions.ok()) {
      End(versions.status());
      return;
    }
    Response response;
    method_.write(*versions, &response);
    EndWith(response);
  }

  void OnEnded(const absl::Status& status) override {
    Audit(method_.name, *this, has_model_ ? model_.name : "", has_model_ ? model_.version : 0, status,
          SteadyNow() - began());
  }

  const ModelMethod<Request, Response> method_;
  AskedModel model_;  // constant once has_model_ is set; a drain may end the call before that
  std::atomic<bool> has_model_{false};
};

// Adds a method whose calls are ModelCalls, for operators. service: the first part of the method's path,
// "/voxserve.v1.AdminService/".
template <typename Request, typename Response>
void AddModelCall(const std::string& service, const ModelMethod<Request, Response>& method,
                  const CallEnvironment* environment, RpcRouter* router) {
  router->Add(absl::StrCat(service, method.name), Access::kAdmin,
              [environment, method](grpc::CallbackServerContext* context) {
                return std::make_shared<ModelCall<Request, Response>>(environment, context, method);
              });
}

}  // namespace voxserve
