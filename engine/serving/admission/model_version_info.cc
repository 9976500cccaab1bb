#include "engine/serving/admission/model_version_info.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"

namespace voxserve {

absl::Status WhyNotReady(const ModelVersionInfo& info) {
  const std::string which = absl::StrCat("model \"", info.name, "\" version ", info.version);
  if (info.state == ModelState::kLoading) {
    return WithRetryDelay(
        WithReason(absl::UnavailableError(absl::StrCat(which, " is still loading")), error_reason::kModelLoading),
        absl::Seconds(1));
  }
  return WithReason(
      absl::UnavailableError(absl::StrCat(which, " could not be loaded: ", absl::StrJoin(info.problems, "; "))),
      error_reason::kModelFailed);
}

absl::Status CheckPriority(const ModelVersionInfo& info, int priority) {
  if (priority >= 0 && priority < info.priority_levels) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat("priority is ", priority, "; model \"", info.name,
                                                            "\" has ", info.priority_levels, " levels, from 0")),
                    error_reason::kBadPriority);
}

absl::StatusOr<TensorSet> FindOutputs(const ModelVersionInfo& info, bool return_scores,
                                      const std::vector<std::string>& tensors) {
  const auto refuse = [&](const std::string& why) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("model ", Quoted(info.name), " has ", why)),
                      error_reason::kUnsupportedOutput);
  };
  if (return_scores && !info.has_scores) {
    return refuse(absl::StrCat("no scores per point to return", info.has_boxes ? "; its boxes have their own" : ""));
  }
  if (tensors.empty() && !info.has_labels && !info.has_boxes) return AllTensors(info.tensors.size());
  TensorSet found = 0;
  for (const std::string& name : tensors) {
    const auto is_it = [&](const TensorInfo& tensor) { return tensor.name == name; };
    const auto it = std::find_if(info.tensors.begin(), info.tensors.end(), is_it);
    if (it == info.tensors.end()) {
      const auto append_name = [](std::string* out, const TensorInfo& tensor) { out->append(tensor.name); };
      return refuse(absl::StrCat("no tensor ", Quoted(name), info.tensors.empty() ? "; it has none" : "; it has ",
                                 absl::StrJoin(info.tensors, ", ", append_name)));
    }
    found |= TensorBit(static_cast<int>(it - info.tensors.begin()));
  }
  return found;
}

bool IsTypical(const ModelVersionInfo& info, const InferTask& task) {
  return task.tensor_set.value_or(0) == 0 || (!info.has_labels && !info.has_boxes);
}

}  // namespace voxserve
