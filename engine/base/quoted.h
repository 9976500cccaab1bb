#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace voxserve {

// A name from outside, fit for an error message or the log: in quotes, control characters and quotes escaped.
inline std::string Quoted(const std::string& name) { return absl::StrCat("\"", absl::Utf8SafeCEscape(name), "\""); }

}  // namespace voxserve
