#include "engine/ops/rows/broadcast.h"

#include "engine/ops/launch.h"
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
  return LAUNCH(context, params, SampleScaleShift);
}

}  // namespace voxserve
