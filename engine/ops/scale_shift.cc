#include "engine/ops/scale_shift.h"

#include "kernels/scale_shift.h"

namespace voxserve {

absl::Status ScaleShiftStep::Run(const StepContext& context) const {
  const Tensor in = context.At(options_.in);
  const Tensor out = context.At(options_.out);
  kernels::cpu::ScaleShift({.num_rows = in.rows,
                            .channels = in.channels,
                            .in = in.floats(),
                            .in_pitch = in.pitch,
                            .scale = options_.scale.empty() ? nullptr : options_.scale.data(),
                            .out = out.floats(),
                            .out_pitch = out.pitch,
                            .epilogue = options_.epilogue.In(context)},
                           *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
