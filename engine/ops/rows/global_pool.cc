#include "engine/ops/rows/global_pool.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/sample_reduce.h"

namespace voxserve {

absl::Status GlobalPoolStep::Run(const StepContext& context) const {
  const kernels::Rows in = context.At(options_.in);
  const kernels::Rows out = context.At(options_.out);
  const kernels::SampleReduceParams params{.num_samples = context.num_samples(),
                                           .sample_begin = context.SampleBegin(options_.in),
                                           .reduce = options_.reduce,
                                           .channels = in.channels,
                                           .dtype = in.dtype,
                                           .out_dtype = out.dtype,
                                           .in = in.data,
                                           .in_pitch = in.pitch,
                                           .out = out.data,
                                           .out_pitch = out.pitch,
                                           .workspace = context.scratch};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::SampleReduce(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::SampleReduce(params, *context.execution->pool);
  return absl::OkStatus();
}

size_t GlobalPoolStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return kernels::cuda::SampleReduceWorkspaceBytes(context.num_samples(), options_.in.channels);
  }
  return 0;
}

}  // namespace voxserve
