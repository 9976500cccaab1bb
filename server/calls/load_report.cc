#include "server/calls/load_report.h"

namespace voxserve {
namespace {

constexpr char kTrailer[] = "endpoint-load-metrics-bin";

}  // namespace

xds::data::orca::v3::OrcaLoadReport LoadReportOf(const CallEnvironment& environment) {
  const ServerLoad load = environment.metrics->Load(environment.num_devices);
  xds::data::orca::v3::OrcaLoadReport report;
  report.set_application_utilization(load.utilization);
  report.set_rps_fractional(load.answers_per_second);
  report.set_eps(load.errors_per_second);
  return report;
}

void AddLoadReport(const CallEnvironment& environment, grpc::CallbackServerContext* context) {
  context->AddTrailingMetadata(kTrailer, LoadReportOf(environment).SerializeAsString());
}

}  // namespace voxserve
