#pragma once

// The types of flags that Abseil does not have, as people write them on the command line.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/base/logging.h"

namespace voxserve {

// A size as people write it: 67108864, 64KiB, 64MiB, 1GiB.
struct ByteSize {
  int64_t bytes = 0;
};

// Abseil calls these. The parsers leave the value as it is and set `error` if the text is none.
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(ByteSize size);
bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error);
std::string AbslUnparseFlag(LogLevel level);
bool AbslParseFlag(absl::string_view text, LogFormat* format, std::string* error);
std::string AbslUnparseFlag(LogFormat format);

}  // namespace voxserve
