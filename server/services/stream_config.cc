#include "server/services/stream_config.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/sweep.h"
#include "server/calls/request_telemetry.h"

namespace voxserve {
namespace {

absl::Status CheckSweeps(const ModelVersionInfo& model, const std::string& age_feature) {
  const std::string which = absl::StrCat("model \"", model.name, "\" version ", model.version);
  const std::vector<std::string> features = AgeFeatures(model.axes, model.features);
  switch (ObstacleToSweeps(model.axes, features, age_feature)) {
    case SweepObstacle::kNone:
      break;
    case SweepObstacle::kAxes:
      return BadStreamError(absl::StrCat("sweeps accumulate for models whose axes are x, y and z; those of ", which,
                                         " are ", absl::StrJoin(model.axes, ", ")));
    case SweepObstacle::kAgeFeature:
      return BadStreamError(absl::StrCat("sweeps.age_feature is \"", Clipped(age_feature), "\"; ", which, " has ",
                                         features.empty()
                                             ? "no features but its axes"
                                             : absl::StrCat("the features ", absl::StrJoin(features, ", "))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BadStreamError(const std::string& message) {
  return WithReason(absl::InvalidArgumentError(message), error_reason::kBadStream);
}

absl::Status CheckStreamConfig(const ModelVersionInfo& model, const StreamSession::Config& config) {
  if (model.state != ModelState::kReady) return WhyNotReady(model);
  RETURN_IF_ERROR(CheckPriority(model, config.priority));
  RETURN_IF_ERROR(FindOutputs(model, config.return_scores, config.tensors).status());
  if (config.sweeps.has_value()) return CheckSweeps(model, config.age_feature);
  return absl::OkStatus();
}

}  // namespace voxserve
