#pragma once

// These functions read files of a model folder, and parse the protobuf text format.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/model/problems.h"
#include "google/protobuf/message.h"

namespace voxserve {

// A larger file is not read. The text of a network with 10,000 nodes takes some 2 MB, and names for 65,536 classes take
// 4 MB.
inline constexpr int64_t kMaxTextFileBytes = int64_t{8} << 20;
// Messages and lists within one another. The formats of this project need 6 levels.
inline constexpr int kMaxTextDepth = 32;

// Returns the most bytes of memory that the file's text and the message that it becomes take; 0 if it cannot be read.
int64_t BytesOfTextFile(const std::filesystem::path& path);

// Returns the whole file. If the file is no regular file, has more than max_bytes or cannot be read, returns nullopt
// and adds a problem with the file's name and the reason.
std::optional<std::string> ReadFile(const std::filesystem::path& path, Problems* problems,
                                    int64_t max_bytes = kMaxTextFileBytes);

// Parses text into `message`. Returns false if there was an error. Adds "<file name>:<line>:<column>: ..." for every
// error, or "<file name>: ..." if the error belongs to the whole text; lines and columns count from 1. Every unknown
// field is reported, but the first error of another type ends the parse. A text that is nested deeper than
// kMaxTextDepth is an error.
bool ParseTextProto(std::string_view text, const std::string& file_name, google::protobuf::Message* message,
                    Problems* problems);

}  // namespace voxserve
