#pragma once

// Implements voxserve.v1.AdminService: LoadModel and UnloadModel (server/services/model_call.h) and TunePlan
// (server/services/tune_plan_call.h).
//
// - Every call stands in the audit log, with its caller and its end (server/services/audit.h).
// - A server that drains ends every call at once: UNAVAILABLE, reason DRAINING.

#include "server/services/rpc_router.h"
#include "server/services/service_parts.h"

namespace voxserve {

inline constexpr char kAdminServiceName[] = "voxserve.v1.AdminService";

// Adds the service's methods. parts outlive the router.
void AddAdminService(const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
