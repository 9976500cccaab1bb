#include "engine/ops/image/from_dense.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status FromDenseStep::Run(const StepContext& context) const {
  const kernels::Rows in = context.At(options_.in);
  const kernels::Rows out = context.At(options_.out);
  const kernels::CellsToSitesParams params{.grid = options_.grid,
                                           .num_sites = out.capacity,
                                           .keys = context.Keys(options_.level),
                                           .channels = out.channels,
                                           .dtype = in.dtype,
                                           .out_dtype = out.dtype,
                                           .in = in.data,
                                           .in_pitch = in.pitch,
                                           .out = out.data,
                                           .out_pitch = out.pitch};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::CellsToSites(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::CellsToSites(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
