#include "server/services/health_service.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/calls/call.h"
#include "server/calls/request_telemetry.h"
#include "server/codec/message_parser.h"

namespace voxserve {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

namespace {

constexpr absl::string_view kModelPrefix = "voxserve.model.";

HealthCheckResponse Encode(HealthCheckResponse::ServingStatus status) {
  HealthCheckResponse response;
  response.set_status(status);
  return response;
}

}  // namespace

class HealthService::CheckCall final : public RequestCall {
 public:
  CheckCall(HealthService* health, grpc::CallbackServerContext* context)
      : RequestCall(health->environment_, context, CallKind::kInfo), health_(health) {}

 private:
  void OnRequest(const grpc::ByteBuffer& bytes) override {
    HealthCheckRequest request;
    if (const absl::Status status = ParseMessage(bytes, kMaxSmallMessageBytes, &request); !status.ok()) {
      End(status);
      return;
    }
    const Status status = health_->StatusOf(caller(), request.service());
    if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
      End(absl::NotFoundError(absl::StrCat("no service \"", Clipped(request.service()), "\"")));
    } else {
      EndWith(Encode(status));
    }
  }

  HealthService* const health_;
};

class HealthService::WatchCall final : public RequestCall {
 public:
  WatchCall(HealthService* health, grpc::CallbackServerContext* context)
      : RequestCall(health->environment_, context, CallKind::kInfo), health_(health) {}

  // Sends the status if it differs from the last one sent.
  void Refresh() {
    // The lock may be held during Update, since nothing that Update calls back takes it.
    absl::MutexLock lock(&refresh_mutex_);
    const Status status = health_->StatusOf(caller(), service_);
    if (status == last_) return;
    last_ = status;
    absl::StatusOr<grpc::ByteBuffer> message = Serialize(Encode(status));
    if (message.ok()) Update(*std::move(message));
  }

 private:
  std::shared_ptr<WatchCall> self() { return std::static_pointer_cast<WatchCall>(shared_from_this()); }

  void OnRequest(const grpc::ByteBuffer& bytes) override {
    HealthCheckRequest request;
    if (const absl::Status status = ParseMessage(bytes, kMaxSmallMessageBytes, &request); !status.ok()) {
      End(status);
      return;
    }
    service_ = request.service();
    health_->Watch(self());
    Refresh();
    if (has_ended()) health_->Unwatch(self());  // the client left meanwhile
  }

  void OnEnded(const absl::Status& /*status*/) override { health_->Unwatch(self()); }

  HealthService* const health_;
  std::string service_;  // set before the call watches
  absl::Mutex refresh_mutex_;
  Status last_ ABSL_GUARDED_BY(refresh_mutex_) = HealthCheckResponse::UNKNOWN;  // this value is never sent
};

void HealthService::AddTo(RpcRouter* router) {
  router->Add("/grpc.health.v1.Health/Check", Access::kOpen,
              [this](grpc::CallbackServerContext* context) { return std::make_shared<CheckCall>(this, context); });
  router->Add("/grpc.health.v1.Health/Watch", Access::kOpen,
              [this](grpc::CallbackServerContext* context) { return std::make_shared<WatchCall>(this, context); });
}

void HealthService::SetServing(const std::string& name, bool serving) {
  std::vector<std::shared_ptr<WatchCall>> watches;
  {
    absl::MutexLock lock(&mutex_);
    serving_[name] = serving;
    watches.assign(watches_.begin(), watches_.end());
  }
  for (const std::shared_ptr<WatchCall>& watch : watches) watch->Refresh();
}

void HealthService::SetModelServing(const std::string& model, bool serving) {
  SetServing(absl::StrCat(kModelPrefix, model), serving);
}

bool HealthService::IsServing(const std::string& name) const {
  return StatusOf(Caller(), name) == HealthCheckResponse::SERVING;
}

HealthService::Status HealthService::StatusOf(const Caller& caller, const std::string& name) const {
  absl::string_view model = name;
  // This check comes before the look-up, so that the call's time does not tell whether the model exists.
  if (absl::ConsumePrefix(&model, kModelPrefix) && !caller.SeesModel({model.data(), model.size()})) {
    return HealthCheckResponse::SERVICE_UNKNOWN;
  }
  absl::MutexLock lock(&mutex_);
  const auto found = serving_.find(name);
  if (found == serving_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return found->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::Watch(const std::shared_ptr<WatchCall>& call) {
  absl::MutexLock lock(&mutex_);
  watches_.insert(call);
}

void HealthService::Unwatch(const std::shared_ptr<WatchCall>& call) {
  absl::MutexLock lock(&mutex_);
  watches_.erase(call);
}

}  // namespace voxserve
