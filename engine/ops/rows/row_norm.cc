#include "engine/ops/rows/row_norm.h"

#include "engine/base/status_macros.h"
#include "engine/ops/launch.h"
#include "kernels/rows/row_norm.h"

namespace voxserve {

kernels::RowNormParams RowNormStep::ParamsIn(const StepContext& context) const {
  return {.kind = options_.kind,
          .epsilon = options_.epsilon,
          .weight = options_.weight.floats(),
          .bias = options_.bias.floats(),
          .residual = context.At(options_.epilogue.residual),
          .activation = options_.epilogue.activation,
          .in = context.At(options_.in),
          .out = context.At(options_.out),
          .second = {.epsilon = options_.second.epsilon,
                     .weight = options_.second.weight.floats(),
                     .bias = options_.second.bias.floats(),
                     .out = context.At(options_.second.out)}};
}

absl::Status RowNormStep::Run(const StepContext& context) const {
  const kernels::RowNormParams params = ParamsIn(context);
  return LAUNCH(context, params, NormalizeRows);
}

absl::Status RowNormStep::Upload(WeightUploader& uploader) {
  for (Weights* const weights : {&options_.weight, &options_.bias, &options_.second.weight, &options_.second.bias}) {
    RETURN_IF_ERROR(uploader.Upload(*weights, DType::kFloat32));
  }
  return absl::OkStatus();
}

}  // namespace voxserve
