#include "server/services/rpc_router.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/serving/admission/drop_reason.h"
#include "server/services/request_telemetry.h"

namespace voxserve {

grpc::ServerGenericBidiReactor* RpcRouter::CreateReactor(grpc::GenericCallbackServerContext* context) {
  parts_->on_call(context->peer());
  const auto method = methods_.find(context->method());
  if (method == methods_.end()) {
    return Refuse(context, absl::UnimplementedError(absl::StrCat("no method ", Clipped(context->method()))));
  }
  std::shared_ptr<Call> call;
  absl::Status status;
  try {
    call = method->second(context);
    status = parts_->calls->Open(call);
    if (status.ok()) call->Start();
  } catch (const std::bad_alloc&) {
    if (call != nullptr) parts_->calls->Close(call);
    status = OutOfMemoryError();
  }
  return status.ok() ? call.get() : Refuse(context, status);
}

grpc::ServerGenericBidiReactor* RpcRouter::Refuse(grpc::CallbackServerContext* context, const absl::Status& status) {
  const std::string peer = context->peer();
  if (const auto reason = DropReasonOf(status)) parts_->metrics->OnDropped("", *reason);
  if (!absl::IsUnimplemented(status)) parts_->metrics->OnCallEndedEarly(ReasonOf(status));
  RequestTelemetry({.model = "", .version = 0, .request_id = "", .peer = peer, .client = ""}, *parts_).Refuse(status);
  // A refusal during a drain does not count against a connection that still has calls to be answered: a client that
  // retries too often must not lose those calls.
  if (ReasonOf(status) != error_reason::kDraining || !parts_->calls->HasWork(peer)) parts_->on_refused_call(peer);
  return new RefusedCall(context, status);
}

}  // namespace voxserve
