#include "engine/ops/rows/global_pool.h"

#include "engine/ops/launch.h"
#include "kernels/rows/sample_reduce.h"

namespace voxserve {

absl::Status GlobalPoolStep::Run(const StepContext& context) const {
  const kernels::SampleReduceParams params{.sample_begin = context.SampleBegin(options_.in),
                                           .reduce = options_.reduce,
                                           .exponent = options_.exponent,
                                           .least = options_.least,
                                           .in = context.At(options_.in),
                                           .out = context.At(options_.out),
                                           .workspace = context.scratch};
  return LAUNCH(context, params, SampleReduce);
}

size_t GlobalPoolStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return kernels::cuda::SampleReduceWorkspaceBytes(context.num_samples(), options_.in.channels);
  }
  return 0;
}

}  // namespace voxserve
