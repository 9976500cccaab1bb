#include "engine/ops/argmax.h"

#include "kernels/argmax.h"

namespace voxserve {

absl::Status ArgmaxStep::Run(const StepContext& context) const {
  const Tensor in = context.At(in_);
  const Tensor labels = context.At(out_);
  kernels::cpu::Argmax({.num_rows = in.rows,
                        .channels = in.channels,
                        .in = in.floats(),
                        .in_pitch = in.pitch,
                        .label_bytes = static_cast<int32_t>(SizeOf(labels.dtype)),
                        .labels = labels.data},
                       *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
