#include "engine/graph/program.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve {

absl::Status Program::Upload(WeightUploader& uploader) {
  const int64_t before = uploader.uploaded_bytes();
  for (const std::unique_ptr<Step>& step : steps) {
    const absl::Status status = step->Upload(uploader);
    if (status.ok()) continue;
    return WithReason(absl::Status(status.code(), absl::StrCat("step \"", step->name, "\": ", status.message())),
                      ReasonOf(status));
  }
  weight_bytes = uploader.uploaded_bytes() - before;
  return absl::OkStatus();
}

}  // namespace voxserve
