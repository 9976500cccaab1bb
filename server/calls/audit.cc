#include "server/calls/audit.h"

#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "server/calls/request_telemetry.h"

namespace voxserve {

void Audit(std::string_view action, const Call& call, std::string_view model, int64_t version,
           const absl::Status& status, absl::Duration duration) {
  Log(LogLevel::kInfo, "audit",
      {{"action", action},
       {"who", call.client()},
       {"peer", call.source()},
       TraceIdField(call.trace()),
       SpanIdField(call.trace()),
       {"model", Clipped({model.data(), model.size()})},
       {"version", version},
       {"code", absl::StatusCodeToString(status.code())},
       {"reason", ReasonOf(status)},
       {"error", Clipped(status.message())},
       {"seconds", absl::ToDoubleSeconds(duration)}});
}

}  // namespace voxserve
