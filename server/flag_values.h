#pragma once

// Defines how Abseil's flags parse and print types that Abseil does not know: sizes in bytes, log levels ("debug",
// "info", "warning", "error") and log formats ("text", "json"). Pure functions, any thread.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/base/logging.h"

namespace voxserve {

// A size as people write it: 67108864, 64KiB, 64MiB, 1GiB.
struct ByteSize {
  int64_t bytes = 0;
};

// Abseil calls these functions. If the text is not a valid value, AbslParseFlag returns false, sets `error`, and leaves
// the value unchanged.
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(ByteSize size);
bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error);
std::string AbslUnparseFlag(LogLevel level);
bool AbslParseFlag(absl::string_view text, LogFormat* format, std::string* error);
std::string AbslUnparseFlag(LogFormat format);

}  // namespace voxserve
