#pragma once

// Everything that is wrong with a model, found in one pass and carried in one absl::Status.
//
// A problem is one sentence that begins with where: `node "stem.0": ...`, `tensor "stem.0.weight": ...`,
// `model.textproto:12:7: ...`.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace voxserve {

using Problems = std::vector<std::string>;

// INVALID_ARGUMENT (BAD_MODEL) whose message names `what`, the number of problems and all of them, or OK where there
// is none.
absl::Status StatusOfProblems(std::string_view what, const Problems& problems);

// Reports problems of one place: "<where>: <what>".
class ProblemsAt {
 public:
  ProblemsAt(std::string where, Problems* problems) : where_(std::move(where)), problems_(problems) {}

  // Takes what absl::StrCat takes.
  template <typename... Args>
  void Add(const Args&... what) const {
    problems_->push_back(absl::StrCat(where_, ": ", what...));
  }

 private:
  std::string where_;
  Problems* problems_;  // not owned
};

// The list inside a status that StatusOfProblems made; of any other error its message alone; of OK nothing.
Problems ProblemsOf(const absl::Status& status);

}  // namespace voxserve
