#include "engine/ops/points/point_to_voxel.h"

#include "engine/base/status_macros.h"
#include "engine/ops/launch.h"
#include "engine/runtime/aligned_bytes.h"
#include "kernels/core/scratch.h"
#include "kernels/points/point_to_voxel.h"

namespace voxserve {
namespace {

// The layout of arrays in a GPU's scratch memory, one after the other.
struct GroupArrays {
  explicit GroupArrays(const kernels::PointGroupsParams& groups)
      : sorted_points(AlignedBytes((groups.num_sites + 1) * static_cast<int64_t>(sizeof(int64_t)))),
        workspace(sorted_points + AlignedBytes(groups.num_points * static_cast<int64_t>(sizeof(int32_t)))) {}

  int64_t sorted_points, workspace;  // where these arrays begin, in bytes; site_begin begins at 0
};

}  // namespace

kernels::PointGroupsParams PointToVoxelStep::GroupsOf(const StepContext& context) const {
  const bool is_of_points = options_.position_level == kPointLevel;
  const kernels::Rows in = context.At(options_.in), out = context.At(options_.out);
  return {.dimension = options_.dimension,
          .num_points = in.capacity,
          .point_to_voxel = is_of_points ? context.PointToVoxel() : nullptr,
          .ratio = options_.ratio,
          .voxel_keys = context.Keys(is_of_points ? 0 : options_.position_level),
          .keys = context.Keys(options_.level),
          .num_sites = out.capacity,
          .device_num_points = in.num_rows,
          .device_num_sites = out.num_rows};
}

absl::Status PointToVoxelStep::Run(const StepContext& context) const {
  kernels::PointToVoxelParams params{.reduce = options_.reduce,
                                     .max_points = options_.max_points,
                                     .site_begin = context.VoxelBegin(),
                                     .sorted_points = context.SortedPoints(),
                                     .in = context.At(options_.in),
                                     .empty_slots = context.At(options_.empty_slots),
                                     .out = context.At(options_.out)};
  std::pmr::memory_resource* const memory = context.execution->memory.get();
  kernels::ScratchVector<int32_t> sorted_points(memory);
  kernels::ScratchVector<int64_t> site_begin(memory);
  if (options_.needs_groups()) {
    kernels::PointGroupsParams groups = GroupsOf(context);
    if (context.cuda() != nullptr) {
      const GroupArrays begin(groups);
      char* const scratch = static_cast<char*>(context.scratch);
      groups.site_begin = reinterpret_cast<int64_t*>(scratch);
      groups.sorted_points = reinterpret_cast<int32_t*>(scratch + begin.sorted_points);
      groups.workspace = scratch + begin.workspace;
    } else {
      sorted_points.resize(static_cast<size_t>(groups.num_points));
      site_begin.resize(static_cast<size_t>(groups.num_sites) + 1);
      groups.sorted_points = sorted_points.data();
      groups.site_begin = site_begin.data();
    }
    params.sorted_points = groups.sorted_points;
    params.site_begin = groups.site_begin;
    RETURN_IF_ERROR(LAUNCH(context, groups, PointGroups));
  }
  return LAUNCH(context, params, PointToVoxel);
}

size_t PointToVoxelStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (options_.needs_groups()) {
      const kernels::PointGroupsParams groups = GroupsOf(context);
      return static_cast<size_t>(GroupArrays(groups).workspace) + kernels::cuda::PointGroupsWorkspaceBytes(groups);
    }
  }
  return 0;
}

}  // namespace voxserve
