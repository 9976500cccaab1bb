#include "engine/ops/int8/int8_linear.h"

namespace voxserve {

absl::Status Int8LinearStep::Run(const StepContext& context) const {
  kernels::cpu::Int8Linear({.in = context.At(options_.in),
                            .weights = options_.weights.data(),
                            .out = context.At(options_.out),
                            .epilogue = options_.epilogue.In(context)},
                           *context.execution->pool, context.execution->memory.get());
  return absl::OkStatus();
}

}  // namespace voxserve
