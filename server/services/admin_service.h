#pragma once

// Implements voxserve.v1.AdminService: LoadModel and UnloadModel (server/calls/model_call.h) and TunePlan
// (server/services/tune_plan_call.h).
//
// - Every call stands in the audit log, with its caller and its end (server/calls/audit.h).
// - A server that drains ends every call at once: UNAVAILABLE, reason DRAINING.

#include "server/calls/rpc_router.h"
#include "server/calls/service_parts.h"

namespace voxserve {

inline constexpr char kAdminServiceName[] = "voxserve.v1.AdminService";

// Adds the service's methods. parts outlive the router.
void AddAdminService(const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
