#pragma once

// Implements voxserve.v1.AdminService: LoadModel and UnloadModel (server/calls/model_call.h) and TunePlan
// (server/services/tune_plan_call.h).
//
// - Every call that is admitted writes a line to the audit log when it ends (server/calls/audit.h).
// - When the server drains (shuts down), every call ends at once with UNAVAILABLE, reason DRAINING.

#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"

namespace voxserve {

inline constexpr char kAdminServiceName[] = "voxserve.v1.AdminService";

// Adds the service's methods to the router of the operators' port. `parts` must outlive the router.
void AddAdminService(const CallEnvironment* parts, RpcRouter* router);

}  // namespace voxserve
