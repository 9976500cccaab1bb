#include "server/services/admin_service.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "server/codec/grpc_status.h"
#include "server/services/request_telemetry.h"
#include "server/services/tune_plan_call.h"

namespace voxserve {
namespace {

// One LoadModel or UnloadModel; the first end counts, of the engine's, the client's and the drain's.
template <typename Response>
class ModelCall final : public grpc::ServerUnaryReactor,
                        public AdminCall,
                        public std::enable_shared_from_this<ModelCall<Response>> {
 public:
  // `what`: "LoadModel", "UnloadModel"; for the log.
  ModelCall(AdminCalls* calls, grpc::CallbackServerContext* context, Response* response, const char* what,
            std::string model, int64_t version)
      : calls_(calls),
        context_(context),
        response_(response),
        what_(what),
        peer_(context->peer()),
        model_(std::move(model)),
        version_(version) {}

  // start(done) hands the task to the engine.
  template <typename Start>
  void Begin(const Start& start) {
    if (!calls_->Hold(this->shared_from_this())) return Drain();
    start([self = this->shared_from_this()](const absl::StatusOr<std::vector<int64_t>>& versions) {
      self->End(versions);
    });
  }

  void Drain() override {
    End(WithReason(absl::UnavailableError("the server is shutting down"), error_reason::kDraining));
  }
  void OnCancel() override {
    End(WithReason(absl::CancelledError("the client cancelled, or its deadline passed"), error_reason::kCancelled));
  }
  void OnDone() override { calls_->Release(this->shared_from_this()); }

 private:
  void End(const absl::StatusOr<std::vector<int64_t>>& versions) {
    {
      absl::MutexLock lock(&mutex_);
      if (has_ended_) return;
      has_ended_ = true;
    }
    // Nobody else answers now, and gRPC keeps the response until it is told to finish.
    const absl::Status& status = versions.status();
    if (status.ok()) response_->mutable_versions()->Add(versions->begin(), versions->end());
    Log(LogLevel::kInfo, absl::StrCat(what_, " answered"),
        {{"model", Clipped(model_)},
         {"version", version_},
         {"versions", status.ok() ? absl::StrJoin(*versions, ",") : ""},
         {"code", absl::StatusCodeToString(status.code())},
         {"reason", ReasonOf(status)},
         {"message", Clipped(status.message())},
         {"seconds", absl::ToDoubleSeconds(absl::Now() - started_)},
         {"peer", peer_}});
    this->Finish(ToGrpcStatus(status, context_));
  }

  AdminCalls* const calls_;
  grpc::CallbackServerContext* const context_;
  Response* const response_;
  const std::string what_;
  const std::string peer_;
  const std::string model_;
  const int64_t version_;
  const absl::Time started_ = absl::Now();

  absl::Mutex mutex_;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::TunePlanUpdate>* AdminService::TunePlan(grpc::CallbackServerContext* context,
                                                                     const v1::TunePlanRequest* request) {
  return StartTunePlan(engine_, &calls_, context, *request);
}

grpc::ServerUnaryReactor* AdminService::LoadModel(grpc::CallbackServerContext* context,
                                                  const v1::LoadModelRequest* request,
                                                  v1::LoadModelResponse* response) {
  const auto call = std::make_shared<ModelCall<v1::LoadModelResponse>>(&calls_, context, response, "LoadModel",
                                                                       request->model(), request->version());
  call->Begin([&](auto done) {
    engine_->Load({.model = request->model(), .version = request->version(), .done = std::move(done)});
  });
  return call.get();
}

grpc::ServerUnaryReactor* AdminService::UnloadModel(grpc::CallbackServerContext* context,
                                                    const v1::UnloadModelRequest* request,
                                                    v1::UnloadModelResponse* response) {
  const auto call = std::make_shared<ModelCall<v1::UnloadModelResponse>>(&calls_, context, response, "UnloadModel",
                                                                         request->model(), request->version());
  call->Begin([&](auto done) {
    engine_->Unload({.model = request->model(), .version = request->version(), .done = std::move(done)});
  });
  return call.get();
}

}  // namespace voxserve
