#include "engine/model/problems.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/base/cut_text.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

constexpr absl::string_view kProblemsUrl = "voxserve/problems";
constexpr char kSeparator[] = "\n";  // no problem contains it, since names are escaped

}  // namespace

Problems::Problems(std::initializer_list<std::string> problems) {
  for (const std::string& problem : problems) Add(problem);
}

void Problems::Add(std::string problem) {
  if (is_full()) {
    ++num_more_;
    return;
  }
  if (problem.size() > kMaxProblemBytes) {
    problem.resize(CutAtCharacter(problem, kMaxProblemBytes).size());
    problem += "...";
  }
  listed_.push_back(std::move(problem));
}

void Problems::Add(const Problems& others) {
  for (const std::string& problem : others) Add(problem);
  num_more_ += others.num_more_;
}

std::vector<std::string> Problems::Lines() const {
  std::vector<std::string> lines = listed_;
  if (num_more_ > 0) lines.push_back(absl::StrCat("and ", num_more_, " more"));
  return lines;
}

std::string TextOf(const Problems& problems) {
  return absl::StrCat(problems.size(),
                      problems.size() == 1 ? " problem: " : " problems: ", absl::StrJoin(problems.Lines(), "; "));
}

absl::Status StatusOfProblems(std::string_view what, const Problems& problems) {
  if (problems.empty()) return absl::OkStatus();
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(std::string(what), " has ", TextOf(problems)));
  // The payload is the number of problems that are not listed, then the listed ones.
  status.SetPayload(kProblemsUrl, absl::Cord(absl::StrCat(problems.size() - (problems.end() - problems.begin()),
                                                          kSeparator, absl::StrJoin(problems, kSeparator))));
  return WithReason(std::move(status), error_reason::kBadModel);
}

Problems ProblemsOf(const absl::Status& status) {
  if (status.ok()) return {};
  const auto payload = status.GetPayload(kProblemsUrl);
  if (!payload) return {std::string(status.message())};
  Problems problems;
  problems.listed_ = absl::StrSplit(std::string(*payload), kSeparator);
  static_cast<void>(absl::SimpleAtoi(problems.listed_.front(), &problems.num_more_));
  problems.listed_.erase(problems.listed_.begin());
  return problems;
}

}  // namespace voxserve
