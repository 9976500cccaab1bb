#pragma once

// Load reports by ORCA (https://github.com/cncf/xds), with which clients' policy weighted_round_robin balances: the
// service xds.service.orca.v3.OpenRcaService, and a trailer of every answered call of one request. gRPC's own service
// is a registered method, whose calls are invisible until their request has arrived (see call.h), and Debian 12's gRPC
// lacks it.

#include <grpcpp/grpcpp.h>

#include "server/calls/rpc_router.h"
#include "server/calls/service_parts.h"

namespace voxserve {

// Adds StreamCoreMetrics: a report at once and then at the request's interval, within a second and an hour, until the
// client cancels. INVALID_ARGUMENT for an interval that is none. parts outlive the router.
void AddLoadReportService(const ServiceParts* parts, RpcRouter* router);

// Adds a report to what follows the call's answer: the trailer "endpoint-load-metrics-bin". Called before Finish.
void AddLoadReport(const ServiceParts& parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
