#pragma once

// TunePlan: a reactor that owns its call, starts the engine's search and writes what the engine's threads tell. One
// message is on its way at a time; while it is, progress replaces the progress that waits, so that a client that does
// not read costs nothing. The call ends at once, and its search with it, when the client cancels or the server drains
// (UNAVAILABLE, DRAINING).

#include <grpcpp/grpcpp.h>

#include "engine/serving/engine.h"
#include "server/services/admin_calls.h"
#include "voxserve/v1/admin.pb.h"

namespace voxserve {

// engine and calls outlive the call.
grpc::ServerWriteReactor<v1::TunePlanUpdate>* StartTunePlan(Engine* engine, AdminCalls* calls,
                                                            grpc::CallbackServerContext* context,
                                                            const v1::TunePlanRequest& request);

}  // namespace voxserve
