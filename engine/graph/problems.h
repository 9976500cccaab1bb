#pragma once

// Everything that is wrong with a model, found in one pass and carried in one absl::Status.
//
// A problem is one sentence that begins with where: `node "stem.0": ...`, `tensor "stem.0.weight": ...`,
// `model.textproto:12:7: ...`.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace voxserve {

using Problems = std::vector<std::string>;

// INVALID_ARGUMENT (BAD_MODEL) whose message names `what`, the number of problems and all of them, or OK where there
// is none.
absl::Status StatusOfProblems(std::string_view what, const Problems& problems);

// The list inside a status that StatusOfProblems made; of any other error its message alone; of OK nothing.
Problems ProblemsOf(const absl::Status& status);

}  // namespace voxserve
