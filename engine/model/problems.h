#pragma once

// Problems lists what is wrong with a model or plan file. One pass finds all problems, and one absl::Status carries
// them to the owner of the file.
//
// A problem is one sentence that begins with its place: `node "stem.0": ...`, `tensor "stem.0.weight": ...`,
// `model.textproto:12:7: ...`.
//
// A hostile file can have millions of problems, and each can quote a name of megabytes. So the list keeps the first
// kMostListed of them, each cut to kMaxProblemBytes, and counts the others.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace voxserve {

class Problems {
 public:
  static constexpr size_t kMostListed = 100;
  static constexpr size_t kMaxProblemBytes = 2000;  // the longest that an honest file gives has some 300

  // The container of the listed problems, which tests compare with others.
  using value_type = std::string;
  using const_reference = const std::string&;
  using const_iterator = std::vector<std::string>::const_iterator;
  using iterator = const_iterator;

  Problems() = default;
  Problems(std::initializer_list<std::string> problems);

  // Lists the problem if there is room, and counts it.
  void Add(std::string problem);
  // Adds the problems of another list.
  void Add(const Problems& others);

  bool is_full() const { return listed_.size() == kMostListed; }  // further problems are only counted
  size_t size() const { return listed_.size() + num_more_; }      // the listed problems and those that are only counted
  bool empty() const { return listed_.empty(); }
  const_iterator begin() const { return listed_.begin(); }  // of the listed problems
  const_iterator end() const { return listed_.end(); }

  // Returns the listed problems for people. If there are others, a last line has their number.
  std::vector<std::string> Lines() const;

 private:
  friend Problems ProblemsOf(const absl::Status& status);

  std::vector<std::string> listed_;
  size_t num_more_ = 0;  // problems that are not listed
};

// Returns INVALID_ARGUMENT (BAD_MODEL) with a message that names `what`, the number of problems and the listed ones.
// Returns OK if there is no problem.
absl::Status StatusOfProblems(std::string_view what, const Problems& problems);

// Returns "3 problems: ...; ...; ..." for a message.
std::string TextOf(const Problems& problems);

// ProblemsAt adds problems of one place to a list, as "<where>: <what>".
class ProblemsAt {
 public:
  ProblemsAt(std::string where, Problems* problems) : where_(std::move(where)), problems_(problems) {}

  // Takes the same arguments as absl::StrCat.
  template <typename... Args>
  void Add(const Args&... what) const {
    problems_->Add(problems_->is_full() ? std::string() : absl::StrCat(where_, ": ", what...));
  }

 private:
  std::string where_;
  Problems* problems_;  // not owned
};

// Returns the problems of a status that StatusOfProblems made. Returns the message of any other error, and an empty
// list for OK.
Problems ProblemsOf(const absl::Status& status);

}  // namespace voxserve
