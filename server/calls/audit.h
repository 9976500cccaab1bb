#pragma once

// Writes the audit log: a line of the log, with the message "audit", for each call of AdminService. It names who asked,
// what for, and what came of it:
//
//   2026-11-21T08:15:02.123456Z INFO audit action=LoadModel who=token:operator peer=ipv4:127.0.0.1:41234
//       model=minkunet version=0 code=OK reason="" error=""   seconds=0.412                        (in one line)
//
// - Lines of admitted calls are always written. Lines of refused calls are limited, since anybody can cause
//   them.
// - Thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/calls/call.h"

namespace voxserve {

// model: as the client named it; "" where its request did not come, or could not be read.
void Audit(std::string_view action, const Call& call, std::string_view model, int64_t version,
           const absl::Status& status, absl::Duration duration);

}  // namespace voxserve
