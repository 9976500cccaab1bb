#include "engine/ops/int8/int8_conv2d.h"

#include "kernels/int8/int8_product.h"

namespace voxserve {

absl::Status Int8Conv2dStep::Run(const StepContext& context) const {
  kernels::cpu::Int8Conv2d({.geometry = options_.geometry,
                            .num_images = context.num_samples(),
                            .in_rows = options_.in_rows,
                            .in_columns = options_.in_columns,
                            .in = context.At(options_.in),
                            .weights = options_.weights.lines(),
                            .out = context.At(options_.out),
                            .epilogue = options_.epilogue.In(context)},
                           *context.execution->pool, context.execution->memory.get());
  return absl::OkStatus();
}

}  // namespace voxserve
