#pragma once

// Implements the gRPC server reflection protocol, versions 1 and 1alpha. Tools such as grpcurl use it to list services
// and read their messages. It answers from the compiled-in descriptors. It has no extensions to report, since proto3
// has none.

#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"

namespace voxserve {

// Adds the method of both versions. `parts` must outlive the router.
void AddReflectionService(const CallEnvironment* parts, RpcRouter* router);

}  // namespace voxserve
