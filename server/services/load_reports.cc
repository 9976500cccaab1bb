#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "server/calls/call.h"
#include "server/calls/load_report.h"
#include "server/codec/message_parser.h"
#include "server/services/services.h"
#include "xds/service/orca/v3/orca.pb.h"

namespace voxserve {
namespace {

using xds::service::orca::v3::OrcaLoadReportRequest;

constexpr absl::Duration kMinInterval = absl::Seconds(1);
constexpr absl::Duration kMaxInterval = absl::Hours(1);

absl::StatusOr<absl::Duration> IntervalOf(const OrcaLoadReportRequest& request) {
  const int64_t seconds = request.report_interval().seconds();
  const int32_t nanos = request.report_interval().nanos();
  if (seconds < 0 || nanos < 0 || nanos >= 1'000'000'000) {
    return WithReason(absl::InvalidArgumentError("report_interval must not be negative, and its nanos below 1e9"),
                      error_reason::kMalformed);
  }
  return std::clamp(absl::Seconds(seconds) + absl::Nanoseconds(nanos), kMinInterval, kMaxInterval);
}

class LoadReportCall final : public RequestCall {
 public:
  LoadReportCall(const CallEnvironment* environment, grpc::CallbackServerContext* context)
      : RequestCall(environment, context, CallKind::kInfo) {}

 private:
  void OnRequest(const grpc::ByteBuffer& bytes) override {
    if (const absl::Status status = Begin(bytes); !status.ok()) End(status);
  }

  absl::Status Begin(const grpc::ByteBuffer& bytes) {
    OrcaLoadReportRequest request;
    RETURN_IF_ERROR(ParseMessage(bytes, kMaxSmallMessageBytes, &request));
    ASSIGN_OR_RETURN(interval_, IntervalOf(request));
    Send();
    return absl::OkStatus();
  }

  void Send() {
    {
      absl::MutexLock lock(&mutex_);
      if (has_ended()) return;
      timer_ = SetTimer(SteadyNow() + interval_, &LoadReportCall::OnDue);
    }
    absl::StatusOr<grpc::ByteBuffer> message = Serialize(LoadReportOf(environment()));
    if (message.ok()) Update(*std::move(message));
  }

  void OnDue() {
    if (!Guard([this] { Send(); })) End(OutOfMemoryError());
  }

  void OnEnded(const absl::Status& /*status*/) override {
    absl::MutexLock lock(&mutex_);
    environment().timers->Clear(std::exchange(timer_, 0));
  }

  absl::Duration interval_;  // set before the first report
  absl::Mutex mutex_;
  Timers::Id timer_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

void AddLoadReportService(const CallEnvironment* environment, RpcRouter* router) {
  router->Add("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", Access::kAny,
              [environment](grpc::CallbackServerContext* context) {
                return std::make_shared<LoadReportCall>(environment, context);
              });
}

}  // namespace voxserve
