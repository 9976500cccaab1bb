#pragma once

// Implements xds.service.orca.v3.OpenRcaService: a stream of load reports by ORCA (server/calls/load_report.h). gRPC's
// own implementation is not used: gRPC shows the calls of its registered methods only after their request has arrived
// (see call.h), and the gRPC of Debian 12 lacks this service.

#include "server/calls/call_environment.h"
#include "server/calls/rpc_router.h"

namespace voxserve {

// Adds the method StreamCoreMetrics. It sends a report at once, and then one at each interval until the client cancels.
// The interval is the request's, limited to 1 s to 1 h. INVALID_ARGUMENT (MALFORMED_MESSAGE) if the interval is
// negative or not a valid google.protobuf.Duration. `parts` must outlive the router.
void AddLoadReportService(const CallEnvironment* parts, RpcRouter* router);

}  // namespace voxserve
