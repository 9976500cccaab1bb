#include "engine/compiler/program.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"

namespace voxserve {

namespace {

absl::Status NamingStep(const Step& step, const absl::Status& status) {
  if (status.ok()) return status;
  return WithReason(absl::Status(status.code(), absl::StrCat("step \"", step.name, "\": ", status.message())),
                    ReasonOf(status));
}

}  // namespace

absl::Status Program::Upload(WeightUploader& uploader) {
  const int64_t before = uploader.uploaded_bytes();
  for (const std::unique_ptr<Step>& step : steps) RETURN_IF_ERROR(NamingStep(*step, step->Upload(uploader)));
  weight_bytes = uploader.uploaded_bytes() - before;
  return absl::OkStatus();
}

absl::Status Program::Check() const {
  for (const std::unique_ptr<Step>& step : steps) RETURN_IF_ERROR(NamingStep(*step, step->Check()));
  return absl::OkStatus();
}

}  // namespace voxserve
