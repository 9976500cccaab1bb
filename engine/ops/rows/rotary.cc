#include "engine/ops/rows/rotary.h"

#include "engine/ops/launch.h"
#include "kernels/rows/rotary.h"

namespace voxserve {

absl::Status RotaryStep::Run(const StepContext& context) const {
  kernels::RotaryParams params{.dimension = options_.dimension,
                               .num_heads = options_.num_heads,
                               .positions = context.At(options_.positions),
                               .in = context.At(options_.in),
                               .out = context.At(options_.out)};
  if (options_.positions.buffer < 0) {
    params.keys = context.Keys((*context.buffers)[static_cast<size_t>(options_.out.buffer)].level);
  }
  kernels::SetRotaryFrequencies(options_.base, &params);
  return LAUNCH(context, params, Rotary);
}

}  // namespace voxserve
