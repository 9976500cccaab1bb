#include "engine/ops/boxes/nms.h"

#include <algorithm>

#include "engine/ops/launch.h"

namespace voxserve {

kernels::RotatedNmsParams NmsStep::ParamsIn(const StepContext& context) const {
  kernels::RotatedNmsParams params{.num_samples = context.num_samples(),
                                   .num_inputs = static_cast<int32_t>(options_.in.size()),
                                   .iou_threshold = options_.iou_threshold,
                                   .max_boxes_in = options_.max_boxes_in,
                                   .max_boxes_out = options_.max_boxes_out,
                                   .num_classes = static_cast<int32_t>(options_.classes.size()),
                                   .boxes = context.At(options_.out).floats(),
                                   .workspace = context.scratch};
  std::copy(options_.classes.begin(), options_.classes.end(), params.classes.begin());
  for (size_t i = 0; i < options_.in.size(); ++i) {
    const int64_t rows = (*context.buffers)[static_cast<size_t>(options_.in[i].buffer)].rows_per_sample;
    params.inputs[i] = {.boxes = context.At(options_.in[i]).floats(), .max_boxes = static_cast<int32_t>(rows)};
  }
  return params;
}

absl::Status NmsStep::Run(const StepContext& context) const {
  const kernels::RotatedNmsParams params = ParamsIn(context);
  return LAUNCH(context, params, RotatedNms);
}

size_t NmsStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return kernels::cuda::RotatedNmsWorkspaceBytes(ParamsIn(context));
  }
  return 0;
}

}  // namespace voxserve
