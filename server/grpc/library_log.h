#pragma once

#include <string_view>

#include "engine/base/logging.h"

namespace voxserve {

// Receives the text of a line. level: kWarning for a library's errors, kDebug for its other lines. library: "grpc" or
// "protobuf". Any thread may call it, and it must not throw.
using LibraryLog = void (*)(LogLevel level, const char* library, std::string_view text);

// Sends the lines that gRPC and protobuf log from now on to `log`, and none to stderr. A later call replaces `log`.
// gRPC logs errors alone, unless the environment sets GRPC_VERBOSITY.
void SetLibraryLog(LibraryLog log);

}  // namespace voxserve
