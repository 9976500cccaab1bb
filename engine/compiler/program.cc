#include "engine/compiler/program.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"

namespace voxserve {

namespace {

absl::Status NamingStep(const std::string& step, const absl::Status& status) {
  if (status.ok()) return status;
  return WithReason(absl::Status(status.code(), absl::StrCat("step \"", step, "\": ", status.message())),
                    ReasonOf(status));
}

absl::Status CheckWeights(const Program& program) {
  if (program.overflowing_step.empty()) return absl::OkStatus();
  return NamingStep(program.overflowing_step,
                    WithReason(absl::InvalidArgumentError("a weight, with its batch norm folded in, is not finite"),
                               error_reason::kBadModel));
}

}  // namespace

std::vector<int> Program::LevelsBehindPrunes() const {
  std::vector<int> behind;
  for (size_t i = 1; i < segments.size(); ++i) {
    behind.insert(behind.end(), segments[i].levels.begin(), segments[i].levels.end());
  }
  return behind;
}

absl::Status Program::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(CheckWeights(*this));
  const int64_t before = uploader.uploaded_bytes();
  for (const std::unique_ptr<Step>& step : steps) RETURN_IF_ERROR(NamingStep(step->name, step->Upload(uploader)));
  weight_bytes = uploader.uploaded_bytes() - before;
  return absl::OkStatus();
}

absl::Status Program::Check() const {
  RETURN_IF_ERROR(CheckWeights(*this));
  for (const std::unique_ptr<Step>& step : steps) RETURN_IF_ERROR(NamingStep(step->name, step->Check()));
  return absl::OkStatus();
}

}  // namespace voxserve
