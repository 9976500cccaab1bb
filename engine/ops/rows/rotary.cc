#include "engine/ops/rows/rotary.h"

#include "engine/base/status_macros.h"
#include "engine/ops/launch.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/rotary.h"

namespace voxserve {
namespace {

// Returns the keys of the level on which a slice lies.
const uint64_t* KeysOf(const StepContext& context, const BufferSlice& slice) {
  return context.Keys((*context.buffers)[static_cast<size_t>(slice.buffer)].level);
}

}  // namespace

absl::Status RotaryStep::Run(const StepContext& context) const {
  kernels::RotaryParams params{.dimension = options_.dimension,
                               .num_heads = options_.num_heads,
                               .positions = context.At(options_.positions),
                               .in = context.At(options_.in),
                               .out = context.At(options_.out)};
  if (options_.positions.buffer < 0) params.keys = KeysOf(context, options_.out);
  kernels::SetRotaryFrequencies(options_.base, &params);
  return LAUNCH(context, params, Rotary);
}

absl::Status RotaryAnglesStep::Run([[maybe_unused]] const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    kernels::RotaryAnglesParams params{.dimension = options_.dimension,
                                       .pairs = options_.pairs,
                                       .positions = context.At(options_.positions),
                                       .out = context.At(options_.out)};
    if (options_.positions.buffer < 0) params.keys = KeysOf(context, options_.out);
    kernels::SetRotaryFrequencies(options_.base, &params);
    RETURN_IF_CUDA_ERROR(kernels::cuda::RotaryAngles(params, context.stream()));
  }
  return absl::OkStatus();
}

}  // namespace voxserve
