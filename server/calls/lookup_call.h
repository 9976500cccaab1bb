#pragma once

// LookupCall is a call with one small request that a function answers at once, without a task for the engine: it lists
// models, for example. Any thread of gRPC runs the function, which must not block.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/calls/call.h"
#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"
#include "server/codec/message_parser.h"
#include "server/identity/authoriser.h"

namespace voxserve {

template <typename Request, typename Response>
class LookupCall final : public RequestCall {
 public:
  // Fills the response, or returns why the caller gets none.
  using Lookup = absl::Status (*)(const CallEnvironment& environment, const Caller& caller, const Request& request,
                                  Response* response);

  LookupCall(const CallEnvironment* environment, grpc::CallbackServerContext* context, CallKind kind, Lookup lookup)
      : RequestCall(environment, context, kind), lookup_(lookup) {}

 private:
  void OnRequest(const grpc::ByteBuffer& bytes) override {
    Request request;
    Response response;
    absl::Status status = ParseMessage(bytes, kMaxSmallMessageBytes, &request);
    if (status.ok()) status = lookup_(environment(), caller(), request, &response);
    if (!status.ok()) {
      End(status);
      return;
    }
    absl::StatusOr<HeldBytes> held =
        environment().bytes->Hold(ByteKind::kAnswer, client(), static_cast<int64_t>(response.ByteSizeLong()));
    if (held.ok()) {
      EndWith(response, *std::move(held));
    } else {
      End(held.status());
    }
  }

  const Lookup lookup_;
};

// Adds a method whose calls are LookupCalls. path, access: as for RpcRouter::Add.
template <typename Request, typename Response>
void AddLookup(const std::string& path, Access access, CallKind kind, const CallEnvironment* environment,
               RpcRouter* router,
               absl::Status (*lookup)(const CallEnvironment& environment, const Caller& caller, const Request& request,
                                      Response* response)) {
  router->Add(path, access, [environment, kind, lookup](grpc::CallbackServerContext* context) {
    return std::make_shared<LookupCall<Request, Response>>(environment, context, kind, lookup);
  });
}

}  // namespace voxserve
