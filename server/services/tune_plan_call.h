#pragma once

// Implements voxserve.v1.AdminService.TunePlan. The call starts the engine's search for a plan (the settings by which a
// model's convolutions run fastest), sends the progress that the engine reports, and at last the result.
//
// - While a message is being sent, only the newest progress waits, so a client that reads slowly takes no more memory.
// - The call and its search end at once when the client cancels or when the server drains (UNAVAILABLE, reason
//   DRAINING).
// - Errors: INVALID_ARGUMENT if a number in the request is out of range, and the errors of Engine::Tune.
// - The call writes a line to the audit log when it ends (server/calls/audit.h).

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/calls/call.h"
#include "server/calls/call_environment.h"

namespace voxserve {

// Makes the call of one RPC. `parts` must outlive the call.
std::shared_ptr<Call> MakeTunePlanCall(const CallEnvironment* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
