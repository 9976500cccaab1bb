#pragma once

// This file reads files of a model folder, and parses the protobuf text format.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/model/problems.h"
#include "google/protobuf/message.h"

namespace voxserve {

// Returns the whole file. Where it cannot be read, returns nullopt and adds a problem with the file and the reason.
std::optional<std::string> ReadFile(const std::filesystem::path& path, Problems* problems);

// Parses text into `message`. Returns false where there was an error. Adds "<file name>:<line>:<column>: ..." for every
// error; lines and columns count from 1. Every unknown field is reported; the first error of another kind ends the
// parse.
bool ParseTextProto(std::string_view text, const std::string& file_name, google::protobuf::Message* message,
                    Problems* problems);

}  // namespace voxserve
