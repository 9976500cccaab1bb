#pragma once

// Load reports by ORCA (https://github.com/cncf/xds), with which clients' policy weighted_round_robin balances. Their
// service is in server/services/load_reports.

#include <grpcpp/grpcpp.h>

#include "server/calls/service_parts.h"
#include "xds/data/orca/v3/orca_load_report.pb.h"

namespace voxserve {

// Returns the server's load now.
xds::data::orca::v3::OrcaLoadReport LoadReportOf(const ServiceParts& parts);

// Adds a report to what follows the call's answer: the trailer "endpoint-load-metrics-bin". Called before Finish.
void AddLoadReport(const ServiceParts& parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
