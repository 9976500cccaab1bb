#pragma once

// RpcRouter takes every call of the gRPC server by its headers, and makes the Call of its method. A method that was not
// added gets UNIMPLEMENTED.
//
// - Threads: methods are added before the server starts; after that any thread may call it.
// - Errors: it answers, counts and logs the calls that OpenCalls refuses.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "server/services/call.h"
#include "server/services/service_parts.h"

namespace voxserve {

class RpcRouter final : public grpc::CallbackGenericService {
 public:
  using MakeCall = std::function<std::shared_ptr<Call>(grpc::CallbackServerContext* context)>;

  // parts outlive the router, which outlives the gRPC server.
  explicit RpcRouter(const ServiceParts* parts) : parts_(parts) {}

  // path: "/voxserve.v1.InferenceService/Infer".
  void Add(const std::string& path, MakeCall make_call) { methods_[path] = std::move(make_call); }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  grpc::ServerGenericBidiReactor* Refuse(grpc::CallbackServerContext* context, const absl::Status& status);

  const ServiceParts* const parts_;
  absl::flat_hash_map<std::string, MakeCall> methods_;  // by path
};

}  // namespace voxserve
