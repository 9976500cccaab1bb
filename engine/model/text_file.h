#pragma once

// These functions read files of a model folder, and parse the protobuf text format.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/model/problems.h"
#include "google/protobuf/message.h"

namespace voxserve {

// Returns the whole file. If the file is no regular file or cannot be read, returns nullopt and adds a problem with the
// file's name and the reason.
std::optional<std::string> ReadFile(const std::filesystem::path& path, Problems* problems);

// Parses text into `message`. Returns false if there was an error. Adds "<file name>:<line>:<column>: ..." for every
// error, or "<file name>: ..." if the error belongs to the whole text; lines and columns count from 1. Every unknown
// field is reported, but the first error of another type ends the parse.
bool ParseTextProto(std::string_view text, const std::string& file_name, google::protobuf::Message* message,
                    Problems* problems);

}  // namespace voxserve
