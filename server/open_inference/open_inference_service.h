#pragma once

// Implements inference.GRPCInferenceService, the open inference protocol (proto/open_inference.proto), so that its
// clients need no change. server/OPEN_INFERENCE.md has the table of its calls.
//
// ModelInfer is an InferRun, as Infer is, so all limits hold here too. ServerLive and ServerReady are open to everybody
// who connects, as grpc.health.v1 is, and are answered during a drain.

#include "server/calls/rpc_router.h"
#include "server/calls/service_parts.h"

namespace voxserve {

inline constexpr char kOpenInferenceServiceName[] = "inference.GRPCInferenceService";

// Adds the service's methods. parts outlive the router.
void AddOpenInferenceService(const ServiceParts* parts, RpcRouter* router);

// Adds to the operators' port: RepositoryModelLoad and RepositoryModelUnload, and all calls that tell about the server
// and its models, since clients know one address. Whoever may reach that port is the operator's choice, so loads are
// nowhere else.
void AddOpenInferenceAdmin(const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
