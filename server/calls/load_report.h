#pragma once

// Makes load reports by ORCA (https://github.com/cncf/xds). A gRPC client with the load balancing policy
// weighted_round_robin sends more calls to the servers whose reports show less load. Reports go out with the answers of
// calls (AddLoadReport), and as a stream (server/services/load_reports).

#include <grpcpp/grpcpp.h>

#include "server/calls/call_environment.h"
#include "xds/data/orca/v3/orca_load_report.pb.h"

namespace voxserve {

// Returns the server's load over the last seconds: utilization of the devices, answers and errors per second.
xds::data::orca::v3::OrcaLoadReport LoadReportOf(const CallEnvironment& environment);

// Adds a report to the call's trailers, as "endpoint-load-metrics-bin". Must be called before the call's Finish.
void AddLoadReport(const CallEnvironment& environment, grpc::CallbackServerContext* context);

}  // namespace voxserve
