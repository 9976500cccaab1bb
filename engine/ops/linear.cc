#include "engine/ops/linear.h"

#include "kernels/linear.h"

namespace voxserve {

absl::Status LinearStep::Run(const StepContext& context) const {
  const Tensor in = context.At(options_.in);
  const Tensor out = context.At(options_.out);
  kernels::cpu::Linear({.num_rows = in.rows,
                        .in = in.floats(),
                        .in_pitch = in.pitch,
                        .in_channels = in.channels,
                        .weights = options_.weights.data(),
                        .out = out.floats(),
                        .out_pitch = out.pitch,
                        .out_channels = out.channels,
                        .epilogue = options_.epilogue.In(context)},
                       *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
