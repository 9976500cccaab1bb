#include "engine/ops/boxes/select.h"

#include "engine/ops/boxes/image_channels.h"
#include "engine/ops/launch.h"

namespace voxserve {

kernels::SelectPeaksParams SelectStep::ParamsIn(const StepContext& context) const {
  kernels::SelectPeaksParams params = options_.parameters;
  params.num_samples = context.num_samples();
  params.dtype = context.At(options_.scores).dtype;
  params.scores = ImageAt(context, options_.scores);
  params.selection = context.At(options_.out).floats();
  params.num_not_finite = NotFiniteBoxes(context);
  params.workspace = context.scratch;
  return params;
}

absl::Status SelectStep::Run(const StepContext& context) const {
  const kernels::SelectPeaksParams params = ParamsIn(context);
  return LAUNCH(context, params, SelectPeaks);
}

size_t SelectStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return kernels::cuda::SelectPeaksWorkspaceBytes(ParamsIn(context));
  }
  return 0;
}

}  // namespace voxserve
