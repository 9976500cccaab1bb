#include "engine/serving/admission/model_version_info.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"

namespace voxserve {
namespace {

// Returns a lower limit of a tensor's rows. num_points: the points that get an answer.
int64_t CertainRows(const TensorInfo& tensor, int64_t num_points) {
  switch (tensor.rows) {
    case TensorRows::kPoints:
      return num_points;
    case TensorRows::kSites:
      return 0;
    case TensorRows::kSamples:
      return 1;
    case TensorRows::kCells:
      break;
  }
  return std::accumulate(tensor.cells.begin(), tensor.cells.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

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

absl::Status CheckAnswerSize(const ModelVersionInfo& info, const InferTask& task, int64_t max_bytes) {
  int64_t values = 0;
  for (size_t i = 0; i < info.tensors.size(); ++i) {
    if ((task.tensor_set.value_or(0) & TensorBit(static_cast<int>(i))) == 0) continue;
    values += CertainRows(info.tensors[i], task.num_answers()) * info.tensors[i].channels;
  }
  const int64_t bytes = values * static_cast<int64_t>(SizeOf(task.tensor_dtype));
  if (max_bytes == 0 || bytes <= max_bytes) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        "the tensors of the answer take at least ", bytes, " bytes, more than the limit of ", max_bytes,
                        "; ask for fewer of them, in FLOAT16, or send fewer points")),
                    error_reason::kResponseTooLarge);
}

bool IsTypical(const ModelVersionInfo& info, const InferTask& task) {
  return task.tensor_set.value_or(0) == 0 || (!info.has_labels && !info.has_boxes);
}

}  // namespace voxserve
