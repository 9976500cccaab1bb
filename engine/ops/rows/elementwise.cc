#include "engine/ops/rows/elementwise.h"

#include "engine/ops/launch.h"
#include "kernels/rows/elementwise.h"

namespace voxserve {

absl::Status ElementwiseStep::Run(const StepContext& context) const {
  const kernels::CombineRowsParams params{.function = options_.function,
                                          .epsilon = options_.epsilon,
                                          .a = context.At(options_.a),
                                          .b = context.At(options_.b),
                                          .out = context.At(options_.out)};
  return LAUNCH(context, params, CombineRows);
}

}  // namespace voxserve
