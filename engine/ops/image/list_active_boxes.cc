#include "engine/ops/image/list_active_boxes.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/core/device_code.h"

namespace voxserve {

absl::Status ListActiveBoxesStep::Run([[maybe_unused]] const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    RETURN_IF_CUDA_ERROR(
        kernels::cuda::ListActiveBoxes({.layout = layout_,
                                        .grid = options_.grid,
                                        .depth = options_.depth,
                                        .num_samples = context.num_samples(),
                                        .keys = context.Keys(options_.level),
                                        .num_sites = (*context.num_sites)[static_cast<size_t>(options_.level)],
                                        .device_num_sites = context.DeviceNumSites(options_.level),
                                        .memory = static_cast<int32_t*>(context.At(options_.out).data)},
                                       context.stream()));
  }
  return absl::OkStatus();
}

kernels::ActiveBoxList ListActiveBoxesStep::ListOf([[maybe_unused]] const StepContext& context,
                                                   [[maybe_unused]] int number) const {
  if constexpr (kernels::kHasCuda) {
    return layout_.ListOf(number, context.num_samples(), kernels::cuda::NumSms(),
                          static_cast<int32_t*>(context.At(options_.out).data));
  }
  return {};
}

}  // namespace voxserve
