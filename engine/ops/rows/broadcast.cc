#include "engine/ops/rows/broadcast.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/sample_scale_shift.h"

namespace voxserve {

absl::Status BroadcastStep::Run(const StepContext& context) const {
  const kernels::Rows sites = context.At(options_.sites);
  const kernels::Rows samples = context.At(options_.samples);
  const kernels::Rows out = context.At(options_.out);
  const bool is_product = options_.function == Function::kMultiply;
  const kernels::SampleScaleShiftParams params{.num_rows = out.capacity,
                                               .channels = out.channels,
                                               .num_samples = context.num_samples(),
                                               .sample_begin = context.SampleBegin(options_.out),
                                               .dtype = samples.dtype,
                                               .out_dtype = out.dtype,
                                               .factor_dtype = samples.dtype,
                                               .in = sites.data,
                                               .in_pitch = sites.pitch,
                                               .scale = is_product ? samples.data : nullptr,
                                               .shift = is_product ? nullptr : samples.data,
                                               .factor_pitch = samples.pitch,
                                               .out = out.data,
                                               .out_pitch = out.pitch,
                                               .epilogue = options_.epilogue.In(context)};
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
