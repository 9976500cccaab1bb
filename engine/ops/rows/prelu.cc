#include "engine/ops/rows/prelu.h"

#include "engine/ops/launch.h"
#include "kernels/rows/prelu.h"

namespace voxserve {

absl::Status PReluStep::Run(const StepContext& context) const {
  const kernels::PReluParams params{
      .in = context.At(options_.in), .slopes = options_.slopes.floats(), .out = context.At(options_.out)};
  return LAUNCH(context, params, PRelu);
}

absl::Status PReluStep::Upload(WeightUploader& uploader) { return uploader.Upload(options_.slopes, DType::kFloat32); }

}  // namespace voxserve
