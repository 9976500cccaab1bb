#pragma once

// TunePlan: starts the engine's search and sends what the engine's threads tell. While a message is on its way,
// progress replaces the progress that waits, so that a client that does not read costs nothing. The call ends at once,
// and its search with it, when the client cancels or the server drains (UNAVAILABLE, DRAINING).

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/services/call.h"
#include "server/services/service_parts.h"

namespace voxserve {

// Makes the call. parts outlive it.
std::shared_ptr<Call> MakeTunePlanCall(const ServiceParts* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
