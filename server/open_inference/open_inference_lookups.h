#pragma once

// Adds the methods of the open inference protocol that are answered at once, as LookupCalls: health, metadata,
// configuration, statistics, the index of the repository, and the registration of shared memory.

#include <string>

#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"

namespace voxserve {

// Adds all such methods except those for shared memory. service: the first part of their paths,
// "/inference.GRPCInferenceService/". `parts` must outlive the router.
void AddOpenInferenceLookups(const std::string& service, const CallEnvironment* parts, RpcRouter* router);

// Adds the methods that register, unregister and list shared memory. Only the clients' port, which runs models, has
// them.
void AddSharedMemoryLookups(const std::string& service, const CallEnvironment* parts, RpcRouter* router);

}  // namespace voxserve
