#pragma once

// Implements inference.GRPCInferenceService, the open inference protocol (proto/open_inference.proto). So programs that
// use this protocol, such as Triton's clients, can use this server without a change. server/OPEN_INFERENCE.md has a
// table of the methods.
//
// A ModelInfer call uses an UnaryRequest (server/calls/unary_request.h), as an Infer call does, so the same limits hold
// for both. Everybody who connects may call ServerLive and ServerReady, as grpc.health.v1; the server answers them
// during a drain (shutdown) too.

#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"

namespace voxserve {

inline constexpr char kOpenInferenceServiceName[] = "inference.GRPCInferenceService";

// Adds the methods of the clients' port: all except RepositoryModelLoad and RepositoryModelUnload. `parts` must outlive
// the router.
void AddOpenInferenceService(const CallEnvironment* parts, RpcRouter* router);

// Adds the methods of the operators' port. `parts` must outlive the router. The methods are:
// - RepositoryModelLoad and RepositoryModelUnload. Only this port has them, since the operator decides who may reach
//   it.
// - All methods of AddOpenInferenceLookups, since a client program that loads models sends all its calls to one
//   address.
void AddOpenInferenceAdmin(const CallEnvironment* parts, RpcRouter* router);

}  // namespace voxserve
