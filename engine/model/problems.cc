#include "engine/model/problems.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

constexpr absl::string_view kProblemsUrl = "voxserve/problems";
constexpr char kSeparator = '\n';  // no problem contains this character, since names are escaped

}  // namespace

absl::Status StatusOfProblems(std::string_view what, const Problems& problems) {
  if (problems.empty()) return absl::OkStatus();
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat(std::string(what), " has ", problems.size(),
                   problems.size() == 1 ? " problem: " : " problems: ", absl::StrJoin(problems, "; ")));
  status.SetPayload(kProblemsUrl, absl::Cord(absl::StrJoin(problems, std::string(1, kSeparator))));
  return WithReason(std::move(status), error_reason::kBadModel);
}

Problems ProblemsOf(const absl::Status& status) {
  if (status.ok()) return {};
  const auto payload = status.GetPayload(kProblemsUrl);
  if (!payload) return {std::string(status.message())};
  return absl::StrSplit(std::string(*payload), kSeparator);
}

}  // namespace voxserve
