#include "engine/ops/int8/int8_conv2d.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/image/int8/int8_im2col.h"
#include "kernels/int8/int8_product.h"

namespace voxserve {

absl::Status Int8Conv2dStep::Run(const StepContext& context) const {
  const kernels::ConstRows in = context.At(options_.in);
  const kernels::Rows out = context.At(options_.out);
  const kernels::Int8Epilogue epilogue = options_.epilogue.In(context);
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::Int8Im2col({.geometry = options_.geometry,
                                                      .num_images = context.num_samples(),
                                                      .in_rows = options_.in_rows,
                                                      .in_columns = options_.in_columns,
                                                      .in = in,
                                                      .weights = options_.weights.on_device(),
                                                      .out = out,
                                                      .epilogue = epilogue},
                                                     context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::Int8Conv2d({.geometry = options_.geometry,
                            .num_images = context.num_samples(),
                            .in_rows = options_.in_rows,
                            .in_columns = options_.in_columns,
                            .in = in,
                            .weights = options_.weights.lines(),
                            .out = out,
                            .epilogue = epilogue},
                           *context.execution->pool, context.execution->memory.get());
  return absl::OkStatus();
}

absl::Status Int8Conv2dStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(options_.weights.Upload(uploader));
  return options_.epilogue.Upload(uploader);
}

}  // namespace voxserve
