#pragma once

// RpcRouter takes every call of a gRPC server by its headers, and makes the Call of its method. A method that nobody
// added gets UNIMPLEMENTED.
//
// - Callers: where the server has tokens, the router admits a call by its headers, before anything is read of it. A
//   caller is known by its token, else by its certificate, else by its address.
//
// - Threads: methods are added before the server starts; then any thread.
// - Errors: what OpenCalls refuses is answered, counted and logged here.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/calls/call.h"
#include "server/calls/service_parts.h"
#include "server/identity/authoriser.h"

namespace voxserve {

class RpcRouter final : public grpc::CallbackGenericService {
 public:
  using MakeCall = std::function<std::shared_ptr<Call>(grpc::CallbackServerContext* context)>;

  // parts outlive the router, which outlives the gRPC server.
  explicit RpcRouter(const ServiceParts* parts) : parts_(parts) {}

  // path: "/voxserve.v1.InferenceService/Infer".
  void Add(const std::string& path, Access access, MakeCall make_call) {
    methods_[path] = {access, std::move(make_call)};
  }
  // Names a service or a method ("SERVICE/METHOD") of another port. A call to it is refused with a message that says
  // where it is.
  void AddElsewhere(const std::string& name, const std::string& where) { elsewhere_[name] = where; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  struct Method {
    Access access = Access::kAdmin;
    MakeCall make_call;
  };

  void AuditRefused(const grpc::GenericCallbackServerContext& context, const absl::Status& status) const;
  absl::Status UnknownMethod(const std::string& path) const;
  grpc::ServerGenericBidiReactor* Refuse(grpc::CallbackServerContext* context, const absl::Status& status);

  const ServiceParts* const parts_;
  absl::flat_hash_map<std::string, Method> methods_;         // by path
  absl::flat_hash_map<std::string, std::string> elsewhere_;  // where a service or a method is, by its name
};

}  // namespace voxserve
