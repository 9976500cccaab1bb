#pragma once

// Problems lists everything that is wrong with a model or plan file. One pass finds all problems, and one absl::Status
// carries them to the owner of the file.
//
// A problem is one sentence that begins with its place: `node "stem.0": ...`, `tensor "stem.0.weight": ...`,
// `model.textproto:12:7: ...`.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace voxserve {

using Problems = std::vector<std::string>;

// Returns INVALID_ARGUMENT (BAD_MODEL) with a message that names `what`, the number of problems and all problems.
// Returns OK if there is no problem.
absl::Status StatusOfProblems(std::string_view what, const Problems& problems);

// ProblemsAt adds problems of one place to a list, as "<where>: <what>".
class ProblemsAt {
 public:
  ProblemsAt(std::string where, Problems* problems) : where_(std::move(where)), problems_(problems) {}

  // Takes the same arguments as absl::StrCat.
  template <typename... Args>
  void Add(const Args&... what) const {
    problems_->push_back(absl::StrCat(where_, ": ", what...));
  }

 private:
  std::string where_;
  Problems* problems_;  // not owned
};

// Returns the problems of a status that StatusOfProblems made. For any other error it returns the message, for OK an
// empty list.
Problems ProblemsOf(const absl::Status& status);

}  // namespace voxserve
