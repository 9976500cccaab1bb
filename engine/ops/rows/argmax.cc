#include "engine/ops/rows/argmax.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/argmax.h"

namespace voxserve {

absl::Status ArgmaxStep::Run(const StepContext& context) const {
  const kernels::Rows in = context.At(in_);
  const kernels::Rows labels = context.At(out_);
  const kernels::ArgmaxParams params{.num_rows = in.capacity,
                                     .channels = in.channels,
                                     .dtype = in.dtype,
                                     .in = in.data,
                                     .in_pitch = in.pitch,
                                     .label_bytes = static_cast<int32_t>(SizeOf(labels.dtype)),
                                     .labels = labels.data};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::Argmax(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::Argmax(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
