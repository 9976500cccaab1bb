#pragma once

// RenderHtml renders the status page at /: one self-contained HTML document (no other files, no other hosts) that
// refreshes itself. The function is pure; the server gathers the data into ServerStatus. All text is escaped.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/serving/engine.h"
#include "server/metrics/metrics.h"

namespace voxserve {

struct ServerStatus {
  struct Model {
    ModelVersionInfo info;
    ModelStatistics statistics;  // summed over the model's versions
  };

  std::string version;
  std::string devices;
  std::string grpc_address;
  absl::Duration uptime;
  absl::Status readiness;
  std::vector<DeviceStatistics> device_statistics;
  std::vector<Model> models;  // ordered by name, then by version
};

std::string RenderHtml(const ServerStatus& status);

// Writes &, <, >, " and ' as entities.
std::string HtmlEscaped(std::string_view text);

}  // namespace voxserve
