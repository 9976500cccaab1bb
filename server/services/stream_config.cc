#include "server/services/stream_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "server/services/request_telemetry.h"

namespace voxserve {
namespace {

absl::Status CheckSweeps(const ModelVersionInfo& model, const std::string& age_feature) {
  const std::string which = absl::StrCat("model \"", model.name, "\" version ", model.version);
  const std::vector<std::string> spatial = {"x", "y", "z"};
  if (!std::is_permutation(model.axes.begin(), model.axes.end(), spatial.begin(), spatial.end())) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("sweeps accumulate for models whose axes are x, y and z; those of ",
                                                which, " are ", absl::StrJoin(model.axes, ", "))),
        error_reason::kBadStream);
  }
  if (age_feature.empty()) return absl::OkStatus();
  std::vector<std::string> features;
  for (const FeatureInfo& feature : model.features) {
    if (std::find(model.axes.begin(), model.axes.end(), feature.name) == model.axes.end()) {
      features.push_back(feature.name);
    }
  }
  if (std::find(features.begin(), features.end(), age_feature) != features.end()) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(
                        absl::StrCat("sweeps.age_feature is \"", Clipped(age_feature), "\"; ", which, " has ",
                                     features.empty() ? "no features but its axes"
                                                      : absl::StrCat("the features ", absl::StrJoin(features, ", ")))),
                    error_reason::kBadStream);
}

}  // namespace

absl::Status CheckStreamConfig(const ModelVersionInfo& model, const StreamSession::Config& config) {
  if (model.state != ModelState::kReady) return WhyNotReady(model);
  RETURN_IF_ERROR(CheckPriority(model, config.priority));
  RETURN_IF_ERROR(CheckOutputs(model, config.return_scores));
  if (config.sweeps.has_value()) return CheckSweeps(model, config.age_feature);
  return absl::OkStatus();
}

}  // namespace voxserve
