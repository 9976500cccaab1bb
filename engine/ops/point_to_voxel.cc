#include "engine/ops/point_to_voxel.h"

#include <vector>

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/point_to_voxel.h"

namespace voxserve {
namespace {

// Of a GPU's scratch memory.
size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

kernels::PointGroupsParams PointToVoxelStep::GroupsOf(const StepContext& context) const {
  const bool is_of_points = options_.position_level == kPointLevel;
  return {.dimension = options_.dimension,
          .num_points = context.At(options_.in).rows,
          .point_to_voxel = is_of_points ? context.PointToVoxel() : nullptr,
          .ratio = options_.ratio,
          .voxel_keys = context.Keys(is_of_points ? 0 : options_.position_level),
          .keys = context.Keys(options_.level),
          .num_sites = context.At(options_.out).rows};
}

absl::Status PointToVoxelStep::Run(const StepContext& context) const {
  const Tensor in = context.At(options_.in);
  const Tensor out = context.At(options_.out);
  kernels::PointToVoxelParams params{.reduce = options_.reduce,
                                     .num_sites = out.rows,
                                     .channels = out.channels,
                                     .dtype = in.dtype,
                                     .out_dtype = out.dtype,
                                     .in = in.data,
                                     .in_pitch = in.pitch,
                                     .out = out.data,
                                     .out_pitch = out.pitch};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      params.sorted_points = context.device_geometry->sorted_points();
      params.site_begin = context.device_geometry->voxel_begin();
      if (options_.needs_groups()) {
        kernels::PointGroupsParams groups = GroupsOf(context);
        char* scratch = static_cast<char*>(context.scratch);
        params.site_begin = groups.site_begin = reinterpret_cast<int64_t*>(scratch);
        scratch += Aligned(static_cast<size_t>(groups.num_sites + 1) * sizeof(int64_t));
        params.sorted_points = groups.sorted_points = reinterpret_cast<int32_t*>(scratch);
        groups.workspace = scratch + Aligned(static_cast<size_t>(groups.num_points) * sizeof(int32_t));
        RETURN_IF_CUDA_ERROR(kernels::cuda::PointGroups(groups, context.stream()));
      }
      RETURN_IF_CUDA_ERROR(kernels::cuda::PointToVoxel(params, context.stream()));
      return absl::OkStatus();
    }
  }
  params.sorted_points = context.geometry->sorted_points.data();
  params.site_begin = context.geometry->voxel_begin.data();
  std::vector<int32_t> sorted_points;
  std::vector<int64_t> site_begin;
  if (options_.needs_groups()) {
    kernels::PointGroupsParams groups = GroupsOf(context);
    sorted_points.resize(static_cast<size_t>(groups.num_points));
    site_begin.resize(static_cast<size_t>(groups.num_sites) + 1);
    params.sorted_points = groups.sorted_points = sorted_points.data();
    params.site_begin = groups.site_begin = site_begin.data();
    kernels::cpu::PointGroups(groups, *context.execution->pool);
  }
  kernels::cpu::PointToVoxel(params, *context.execution->pool);
  return absl::OkStatus();
}

size_t PointToVoxelStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr && options_.needs_groups()) {
      const kernels::PointGroupsParams groups = GroupsOf(context);
      return Aligned(static_cast<size_t>(groups.num_sites + 1) * sizeof(int64_t)) +
             Aligned(static_cast<size_t>(groups.num_points) * sizeof(int32_t)) +
             kernels::cuda::PointGroupsWorkspaceBytes(groups);
    }
  }
  return 0;
}

}  // namespace voxserve
