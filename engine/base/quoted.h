#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace voxserve {

// Returns a name from outside in a form fit for an error message or the log: in quotes, with control characters and
// quotes escaped.
inline std::string Quoted(const std::string& name) { return absl::StrCat("\"", absl::Utf8SafeCEscape(name), "\""); }

}  // namespace voxserve
