#pragma once

// The page that a person sees at /: one self-contained HTML document (no other files, no other hosts) that refreshes
// itself. Pure: the server gathers, this renders. All text is escaped.

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
    ModelStatistics statistics;  // of the model: all its versions share them
  };

  std::string version;
  std::string devices;
  std::string grpc_address;
  absl::Duration uptime;
  absl::Status readiness;
  std::vector<DeviceStatistics> device_statistics;
  std::vector<Model> models;  // by name, then by version
};

std::string RenderHtml(const ServerStatus& status);

// &, <, >, " and ' as entities.
std::string HtmlEscaped(std::string_view text);

}  // namespace voxserve
