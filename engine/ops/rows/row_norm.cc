#include "engine/ops/rows/row_norm.h"

#include "engine/base/status_macros.h"
#include "engine/ops/launch.h"
#include "kernels/rows/row_norm.h"

namespace voxserve {

absl::Status RowNormStep::Run(const StepContext& context) const {
  const kernels::RowNormParams params{.kind = options_.kind,
                                      .epsilon = options_.epsilon,
                                      .weight = options_.weight.floats(),
                                      .bias = options_.bias.floats(),
                                      .residual = context.At(options_.epilogue.residual),
                                      .activation = options_.epilogue.activation,
                                      .in = context.At(options_.in),
                                      .out = context.At(options_.out)};
  return LAUNCH(context, params, NormalizeRows);
}

absl::Status RowNormStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(uploader.Upload(options_.weight, DType::kFloat32));
  return uploader.Upload(options_.bias, DType::kFloat32);
}

}  // namespace voxserve
