#include "engine/tensor/farthest_points.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

template <typename... Args>
absl::Status BadSample(const Args&... what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(what...)), error_reason::kBadSample);
}

}  // namespace

absl::Status CheckFarthestPoints(const std::string& name, const FarthestPoints& asked, int64_t num_points) {
  if (asked.num_points > static_cast<uint64_t>(num_points)) {
    return BadSample(name, ".num_points is ", asked.num_points, "; the cloud has ", num_points, " points");
  }
  if (asked.num_points > 0 && !asked.seed && asked.start_index >= static_cast<uint64_t>(num_points)) {
    return BadSample(name, ".start_index is ", asked.start_index, "; the cloud has ", num_points, " points");
  }
  return absl::OkStatus();
}

absl::Status CheckNumValid(const std::string& name, const FarthestPoints& asked, int64_t num_valid,
                           int64_t num_points) {
  if (asked.num_points <= static_cast<uint64_t>(num_valid)) return absl::OkStatus();
  return BadSample(name, ".num_points is ", asked.num_points, "; the cloud has ", num_valid, " valid points of ",
                   num_points);
}

}  // namespace voxserve
