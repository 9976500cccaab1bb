#include "engine/ops/points/point_features.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/points/point_features.h"

namespace voxserve {

absl::Status PointFeaturesStep::Run(const StepContext& context) const {
  const kernels::Rows out = context.At(out_);
  const kernels::PointFeaturesParams params{.point_to_voxel = context.PointToVoxel(),
                                            .features = context.points.Columns(first_column_, out.channels),
                                            .out = out};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::PointFeatures(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::PointFeatures(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
