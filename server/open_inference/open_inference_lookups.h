#pragma once

// The calls of the open inference protocol that are answered at once: health, metadata, configuration, statistics, the
// index of the repository, and shared memory.

#include <string>

#include "server/calls/rpc_router.h"
#include "server/calls/service_parts.h"

namespace voxserve {

// service: "/inference.GRPCInferenceService/". parts outlive the router.
void AddOpenInferenceLookups(const std::string& service, const ServiceParts* parts, RpcRouter* router);

// Adds the calls of shared memory, for the port that infers.
void AddSharedMemoryLookups(const std::string& service, const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
