#include "engine/ops/rows/scale_shift.h"

#include "engine/base/status_macros.h"
#include "engine/ops/launch.h"
#include "kernels/rows/scale_shift.h"

namespace voxserve {

absl::Status ScaleShiftStep::Run(const StepContext& context) const {
  const kernels::ScaleShiftParams params{.in = context.At(options_.in),
                                         .scale = options_.scale.floats(),
                                         .out = context.At(options_.out),
                                         .epilogue = options_.epilogue.In(context)};
  return LAUNCH(context, params, ScaleShift);
}

absl::Status ScaleShiftStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(uploader.Upload(options_.scale, DType::kFloat32));
  return uploader.Upload(options_.epilogue.bias, DType::kFloat32);
}

}  // namespace voxserve
