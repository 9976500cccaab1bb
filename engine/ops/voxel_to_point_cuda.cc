#include <cuda_runtime_api.h>

#include "engine/base/status_macros.h"
#include "engine/ops/voxel_to_point.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/voxel_to_point.h"

namespace voxserve {

absl::Status VoxelToPointStep::RunOnCuda(const StepContext& context) const {
  const Tensor voxels = context.At(in_);
  const int64_t row_bytes = voxels.channels * SizeOf(voxels.dtype);
  // Behind what other steps have queued.
  int64_t begin = 0;
  for (const QueuedOutput& queued : context.queued_outputs)
    begin += AlignedBytes(queued.row_bytes * context.num_points());
  char* const rows = context.output_rows + begin;
  char* const host_rows = context.host_output_rows + begin;
  RETURN_IF_CUDA_ERROR(kernels::cuda::VoxelToPoint({.num_points = context.num_points(),
                                                    .point_to_voxel = context.device_geometry->point_to_voxel(),
                                                    .voxels = voxels.data,
                                                    .voxel_pitch_bytes = voxels.pitch_bytes(),
                                                    .row_bytes = row_bytes,
                                                    .fill_label = is_labels_ ? context.ignore_label : 0,
                                                    .points = rows},
                                                   context.stream()));
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(host_rows, rows, static_cast<size_t>(context.num_points() * row_bytes),
                                       cudaMemcpyDeviceToHost, context.stream()));
  context.queued_outputs.push_back({.is_labels = is_labels_, .row_bytes = row_bytes, .rows = host_rows});
  return absl::OkStatus();
}

}  // namespace voxserve
