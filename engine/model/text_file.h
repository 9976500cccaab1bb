#pragma once

// Files of a model folder, read whole, and the protobuf text format of some of them.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/model/problems.h"
#include "google/protobuf/message.h"

namespace voxserve {

// Nothing, and a problem that names the file and the reason, where it cannot be read.
std::optional<std::string> ReadFile(const std::filesystem::path& path, Problems* problems);

// Parses into `message`. Adds "<file name>:<line>:<column>: ..." for every error, lines and columns from 1, and returns
// false where there was one. Unknown fields are errors, each reported; the first error of another kind ends the parse.
bool ParseTextProto(std::string_view text, const std::string& file_name, google::protobuf::Message* message,
                    Problems* problems);

}  // namespace voxserve
