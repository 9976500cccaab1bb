#pragma once

// Implements TunePlan: it starts the engine's search and sends the progress that the engine reports. While a message is
// being sent, only the newest progress waits, so a client that does not read costs nothing. The call and its search end
// at once when the client cancels or the server drains (UNAVAILABLE, DRAINING).

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/calls/call.h"
#include "server/calls/service_parts.h"

namespace voxserve {

// Makes the call. parts outlive it.
std::shared_ptr<Call> MakeTunePlanCall(const ServiceParts* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
