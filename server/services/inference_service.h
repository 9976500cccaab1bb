#pragma once

// Implements voxserve.v1.InferenceService: Infer, ListModels and GetModel; InferStream is in
// server/services/infer_stream.
//
// An Infer call is an InferRun: it ends on the engine's thread, or with the run's refusal.

#include "server/calls/rpc_router.h"
#include "server/calls/service_parts.h"

namespace voxserve {

inline constexpr char kInferenceServiceName[] = "voxserve.v1.InferenceService";

// Adds the service's methods. parts outlive the router.
void AddInferenceService(const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
