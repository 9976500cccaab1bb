#pragma once

// The gRPC server reflection protocol, versions 1 and 1alpha: tools such as grpcurl list the services and read their
// messages. It answers from the descriptors that are compiled in. Extensions are not known: proto3 has none.

#include "server/services/rpc_router.h"
#include "server/services/service_parts.h"

namespace voxserve {

// Adds the service's method. parts outlive the router.
void AddReflectionService(const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
