#pragma once

// Writes the audit log: one line, with the message "audit", for each operators' call (AdminService's methods, and
// RepositoryModelLoad and RepositoryModelUnload of the open inference protocol). The line names the caller, the model
// and the result:
//
//   2026-11-21T08:15:02.123456Z INFO audit action=LoadModel who=token:operator peer=ipv4:127.0.0.1:41234
//       model=minkunet version=0 code=OK reason="" error=""   seconds=0.412                        (in one line)
//
// - A call writes its line when it ends. RpcRouter writes a similar line for a call without an operator's token; it
//   limits the number of these lines, since anybody can cause them. Calls that OpenCalls refuses have no such line.
// - Threads: thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/calls/call.h"

namespace voxserve {

// Writes the line of one call. action: the method's name. model: the name in the request; "" if the request did not
// arrive or could not be read. status: the call's end. duration: from the call's headers to its end.
void Audit(std::string_view action, const Call& call, std::string_view model, int64_t version,
           const absl::Status& status, absl::Duration duration);

}  // namespace voxserve
