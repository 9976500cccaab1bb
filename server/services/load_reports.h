#pragma once

// The service xds.service.orca.v3.OpenRcaService: a stream of load reports (server/calls/load_report.h). gRPC's own
// service is a registered method, whose calls are invisible until their request has arrived (see call.h), and Debian
// 12's gRPC lacks it.

#include "server/calls/rpc_router.h"
#include "server/calls/service_parts.h"

namespace voxserve {

// Adds StreamCoreMetrics: a report at once and then at the request's interval, within a second and an hour, until the
// client cancels. INVALID_ARGUMENT for an interval that is none. parts outlive the router.
void AddLoadReportService(const ServiceParts* parts, RpcRouter* router);

}  // namespace voxserve
