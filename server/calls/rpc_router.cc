#include "server/calls/rpc_router.h"

#include <iterator>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/cut_text.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/serving/admission/drop_reason.h"
#include "server/calls/request_telemetry.h"
#include "server/calls/trace_context.h"
#include "server/sockets/peer.h"

namespace voxserve {
namespace {

// The name in a certificate may be long: the client chooses it, if only the operator's root signs the certificate.
constexpr size_t kMaxCertificateNameBytes = 128;

std::string_view ViewOf(grpc::string_ref text) { return {text.data(), text.size()}; }

// Returns the first alternative name of the client's certificate, else its common name, or "" if it has shown none.
std::string CertificateName(const grpc::CallbackServerContext& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return "";
  const std::vector<grpc::string_ref> names = auth->GetPeerIdentity();
  if (names.empty()) return "";
  return std::string(CutAtCharacter({names.front().data(), names.front().size()}, kMaxCertificateNameBytes));
}

absl::StatusOr<Caller> CallerOf(const grpc::CallbackServerContext& context, const CallEnvironment& environment,
                                Access access) {
  const Authoriser* const authoriser = environment.authoriser;
  Caller caller;
  caller.access = access;
  if (environment.client_certificates != nullptr) {
    caller.connection = context.auth_context();
    if (caller.connection != nullptr) {
      RETURN_IF_ERROR(environment.client_certificates->Check(*caller.connection));
    }
  }
  if (authoriser != nullptr) {
    const auto [begin, end] = context.client_metadata().equal_range("authorization");
    std::optional<std::string_view> authorization;
    // If there are several headers, none is used, since a proxy may have checked another one.
    if (begin != end && std::next(begin) == end) authorization = ViewOf(begin->second);
    ASSIGN_OR_RETURN(caller.token, authoriser->Admit(access, authorization));
    caller.is_anonymous = caller.token == nullptr;
  }
  if (caller.token != nullptr) {
    caller.client = absl::StrCat("token:", caller.token->name);
    return caller;
  }
  const std::string certificate = CertificateName(context);
  caller.client = certificate.empty() ? ClientOf(environment.connections->SourceOf(context.peer()))
                                      : absl::StrCat("certificate:", certificate);
  return caller;
}

}  // namespace

grpc::ServerGenericBidiReactor* RpcRouter::CreateReactor(grpc::GenericCallbackServerContext* context) {
  std::shared_ptr<Call> call;
  absl::Status status;
  try {
    environment_->connections->OnCall(context->peer());
    const auto method = methods_.find(context->method());
    if (method == methods_.end()) return Refuse(context, UnknownMethod(context->method()));
    absl::StatusOr<Caller> caller = CallerOf(*context, *environment_, method->second.access);
    if (!caller.ok()) {
      if (method->second.access == Access::kAdmin) AuditRefused(*context, caller.status());
      return Refuse(context, caller.status());
    }
    call = method->second.make_call(context);
    call->SetCaller(*std::move(caller));
    KeepConnection(*call);
    status = environment_->calls->Open(call);
    if (status.ok()) call->Start();
  } catch (const std::bad_alloc&) {
    if (call != nullptr) environment_->calls->Close(call);
    status = OutOfMemoryError();
  }
  return status.ok() ? call.get() : Refuse(context, status);
}

void RpcRouter::KeepConnection(const Call& call) const {
  if (environment_->client_connections == nullptr) return;
  environment_->client_connections->OnCall(call.client(), call.peer());
  // If the connection ended before the line above, nobody else would tell its end.
  if (!environment_->connections->IsOpen(call.peer())) environment_->connections->OnGone(call.peer());
}

// Logs a refused call. The limiter bounds these log lines, since anybody can cause refused calls without end.
void RpcRouter::AuditRefused(const grpc::GenericCallbackServerContext& context, const absl::Status& status) const {
  const std::optional<int64_t> left_out = environment_->log_limiter->Admit("audit");
  if (!left_out.has_value()) return;
  const TraceContext trace = TraceContextOf(context.client_metadata());
  Log(LogLevel::kWarning, "audit",
      {{"action", context.method().substr(context.method().rfind('/') + 1)},
       {"who", "nobody"},
       {"peer", environment_->connections->SourceOf(context.peer())},
       TraceIdField(trace),
       SpanIdField(trace),
       {"code", absl::StatusCodeToString(status.code())},
       {"reason", ReasonOf(status)},
       {"error", std::string(status.message())},
       {"left_out", *left_out}});
}

absl::Status RpcRouter::UnknownMethod(const std::string& path) const {
  for (const auto& [name, where] : elsewhere_) {
    if (absl::StartsWith(absl::StrCat(path, "/"), absl::StrCat("/", name, "/"))) {
      return absl::UnimplementedError(absl::StrCat(name, " is not on this port: ", where));
    }
  }
  return absl::UnimplementedError(absl::StrCat("no method ", Clipped(path)));
}

grpc::ServerGenericBidiReactor* RpcRouter::Refuse(grpc::CallbackServerContext* context, const absl::Status& status) {
  try {
    TellRefused(context, status);
  } catch (const std::bad_alloc&) {  // then metrics, log or limits lack it
  }
  return new RefusedCall(context, status);
}

void RpcRouter::TellRefused(grpc::CallbackServerContext* context, const absl::Status& status) {
  const std::string peer = context->peer();
  if (const auto reason = DropReasonOf(status)) environment_->metrics->OnDropped("", *reason);
  if (!absl::IsUnimplemented(status)) environment_->metrics->OnCallEndedEarly(ReasonOf(status));
  RequestTelemetry({.model = "",
                    .version = 0,
                    .request_id = "",
                    .peer = environment_->connections->SourceOf(peer),
                    .trace = TraceContextOf(context->client_metadata())},
                   *environment_)
      .Refuse(status);
  if (ReasonOf(status) == error_reason::kCertificateRefused) environment_->connections->OnRefusedCertificate(peer);
  environment_->connections->OnRefusedCall(
      peer, ReasonOf(status) == error_reason::kDraining && environment_->calls->HasWork(peer));
}

}  // namespace voxserve
