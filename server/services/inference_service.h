#pragma once

// voxserve.v1.InferenceService over the engine: Infer, ListModels and GetModel; InferStream is
// server/services/infer_stream.
//
// An Infer parses its request, submits it to the engine, and ends from the engine's thread. A cancelled call (client
// gone, deadline passed) takes its task out of the engine's queue.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/serving/engine.h"
#include "server/identity/authoriser.h"
#include "server/services/rpc_router.h"
#include "server/services/service_parts.h"

namespace voxserve {

inline constexpr char kInferenceServiceName[] = "voxserve.v1.InferenceService";

// Whether the caller may run this model at this priority: PERMISSION_DENIED.
absl::Status CheckMayInfer(const Caller& caller, const Engine& engine, const std::string& model, int64_t version,
                           int priority);

// Adds the service's methods. parts outlive the router.
void AddInferenceService(const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
