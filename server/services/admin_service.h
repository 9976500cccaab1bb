#pragma once

// Implements voxserve.v1.AdminService: LoadModel and UnloadModel; TunePlan is in server/services/tune_plan_call.
//
// - A load or unload goes on if its client is gone; its answer is dropped.
// - A draining server ends every call at once: UNAVAILABLE, reason DRAINING.

#include "server/services/rpc_router.h"
#include "server/services/service_parts.h"

namespace voxserve {

// Adds the service's methods. parts outlive the router.
void AddAdminService(const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
