#include "engine/compiler/program.h"

#include <algorithm>
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

const ServedDataflow* ProgramConv::Find(Dataflow dataflow) const {
  const auto found = std::find_if(served.begin(), served.end(), [dataflow](const ServedDataflow& of_device) {
    return of_device.dataflow == dataflow;
  });
  return found == served.end() ? nullptr : &*found;
}

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
