#pragma once

// Implements voxserve.v1.InferenceService: Infer, ListModels and GetModel. InferStream is implemented in
// server/services/infer_stream.
//
// An Infer call is an InferCall, whose UnaryRequest (server/calls/unary_request.h) hands the request to the engine.
// ListModels and GetModel are LookupCalls, and show a caller only the models that it may see.

#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"

namespace voxserve {

inline constexpr char kInferenceServiceName[] = "voxserve.v1.InferenceService";

// Adds the service's methods, InferStream too. `parts` must outlive the router.
void AddInferenceService(const CallEnvironment* parts, RpcRouter* router);

}  // namespace voxserve
