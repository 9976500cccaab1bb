#pragma once

// Implements voxserve.v1.InferenceService: Infer, ListModels and GetModel; InferStream is in
// server/services/infer_stream.
//
// An Infer call parses its request, submits it to the engine, and ends on the engine's thread. If it is cancelled (the
// client is gone, or the deadline passed), its task leaves the engine's queue.

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
