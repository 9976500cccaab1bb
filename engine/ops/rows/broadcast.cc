#include "engine/ops/rows/broadcast.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/scale_shift.h"

namespace voxserve {

absl::Status BroadcastStep::Run(const StepContext& context) const {
  const kernels::Rows samples = context.At(options_.samples);
  kernels::SampleScaleShiftParams params{.num_samples = context.num_samples(),
                                         .sample_begin = context.SampleBegin(options_.out),
                                         .in = context.At(options_.sites),
                                         .out = context.At(options_.out),
                                         .epilogue = options_.epilogue.In(context)};
  params.in.dtype = samples.dtype;
  (options_.function == Function::kMultiply ? params.scale : params.shift) = samples;
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::SampleScaleShift(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::SampleScaleShift(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
