#include "engine/ops/rows/multiply.h"

#include "engine/ops/launch.h"
#include "kernels/rows/multiply.h"

namespace voxserve {

absl::Status MultiplyStep::Run(const StepContext& context) const {
  const kernels::MultiplyRowsParams params{
      .in = context.At(options_.in), .factor = context.At(options_.factor), .out = context.At(options_.out)};
  return LAUNCH(context, params, MultiplyRows);
}

}  // namespace voxserve
