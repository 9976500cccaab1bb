#pragma once

// RpcRouter is the generic service that receives all calls of one port. When the headers of a call arrive, it admits
// the caller, makes the Call of the method, hands it to OpenCalls and starts it. Services owns one router for each
// port.
//
// - Callers: if the server has tokens, the router checks a call's token by the headers, before the call reads a
//   message. The caller is named by its token, else by its certificate, else by its address (Caller::client).
// - Threads: methods are added before the server starts. Then gRPC calls the router from any thread.
// - Errors: the router answers a refused call with its error, and counts and logs it. The errors are UNIMPLEMENTED if
//   the method was not added, those of Authoriser::Admit and of OpenCalls::Open, and RESOURCE_EXHAUSTED (OUT_OF_MEMORY)
//   if an allocation failed.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/calls/call.h"
#include "server/calls/call_environment.h"
#include "server/identity/authoriser.h"

namespace voxserve {

class RpcRouter final : public grpc::CallbackGenericService {
 public:
  using MakeCall = std::function<std::shared_ptr<Call>(grpc::CallbackServerContext* context)>;

  // `environment` must outlive the router, and the router must outlive the gRPC server.
  explicit RpcRouter(const CallEnvironment* environment) : environment_(environment) {}

  // Adds a method. path: "/voxserve.v1.InferenceService/Infer". access: the right that the caller needs. make_call:
  // makes the Call of an RPC; any thread calls it.
  void Add(const std::string& path, Access access, MakeCall make_call) {
    methods_[path] = {access, std::move(make_call)};
  }
  // Adds the name of a service or method ("SERVICE/METHOD") that another port serves. A call to it gets UNIMPLEMENTED,
  // and the error's text has `where`, which says how to reach that port.
  void AddElsewhere(const std::string& name, const std::string& where) { elsewhere_[name] = where; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  struct Method {
    Access access = Access::kAdmin;
    MakeCall make_call;
  };

  // Tells ClientConnections over which connection the caller calls.
  void KeepConnection(const Call& call) const;
  void AuditRefused(const grpc::GenericCallbackServerContext& context, const absl::Status& status) const;
  absl::Status UnknownMethod(const std::string& path) const;
  grpc::ServerGenericBidiReactor* Refuse(grpc::CallbackServerContext* context, const absl::Status& status);
  void TellRefused(grpc::CallbackServerContext* context, const absl::Status& status);

  const CallEnvironment* const environment_;
  absl::flat_hash_map<std::string, Method> methods_;         // by path
  absl::flat_hash_map<std::string, std::string> elsewhere_;  // where a service or a method is, by its name
};

}  // namespace voxserve
