#include "engine/ops/image/max_pool2d.h"

#include "engine/ops/launch.h"

namespace voxserve {

absl::Status MaxPool2dStep::Run(const StepContext& context) const {
  const kernels::MaxPool2dParams params{.geometry = options_.geometry,
                                        .num_images = context.num_samples(),
                                        .in_rows = options_.in_rows,
                                        .in_columns = options_.in_columns,
                                        .in = context.At(options_.in),
                                        .out = context.At(options_.out)};
  return LAUNCH(context, params, MaxPool2d);
}

}  // namespace voxserve
