#include "engine/ops/rows/argmax.h"

#include "engine/ops/launch.h"
#include "kernels/rows/argmax.h"

namespace voxserve {

absl::Status ArgmaxStep::Run(const StepContext& context) const {
  const kernels::Rows labels = context.At(options_.out);
  if (options_.classifier != nullptr) return options_.classifier->Label(context, labels);
  const kernels::ArgmaxParams params{
      .in = context.At(options_.in), .labels = labels, .not_finite_label = context.ignore_label};
  return LAUNCH(context, params, Argmax);
}

}  // namespace voxserve
