#pragma once

// VoxelizeBuffers owns the host memory of Voxelize's outputs and workspace, in tests. Voxelize's own functions give the
// sizes. Attach fills the memory with invalid values, so that a value that Voxelize fails to write is visible.

#include <cstdint>
#include <vector>

#include "kernels/points/voxelize.h"

namespace voxserve::kernels::fixtures {

// The outputs of Voxelize. The params that Attach has filled in may also be passed on to LimitVoxels, which changes the
// outputs in place.
struct VoxelizeBuffers {
  std::vector<uint64_t> keys;
  std::vector<int32_t> point_to_voxel;
  std::vector<int32_t> sorted_points;
  std::vector<int64_t> voxel_begin;
  std::vector<int64_t> sample_begin;
  std::vector<int64_t> num_invalid;
  std::vector<int64_t> num_out_of_range;
  std::vector<Axes> sample_origin;
  std::vector<char> workspace;

  // Sets the params' outputs to this memory. The inputs must be set already.
  void Attach(VoxelizeParams& params) {
    const auto n = static_cast<size_t>(params.num_points);
    const auto b = static_cast<size_t>(params.num_samples);
    keys.assign(n, 77);
    point_to_voxel.assign(n, 77);
    sorted_points.assign(n, 77);
    voxel_begin.assign(n + 1, 77);
    sample_begin.assign(b + 1, 77);
    num_invalid.assign(b, 77);
    num_out_of_range.assign(b, 77);
    sample_origin.assign(b, {77, 77, 77, 77});
    workspace.assign(VoxelizeWorkspaceBytes(params), 'x');
    params.keys = keys.data();
    params.point_to_voxel = point_to_voxel.data();
    params.sorted_points = sorted_points.data();
    params.voxel_begin = voxel_begin.data();
    params.sample_begin = sample_begin.data();
    params.num_invalid = num_invalid.data();
    params.num_out_of_range = num_out_of_range.data();
    params.sample_origin = sample_origin.data();
    params.workspace = workspace.data();
  }

  // Cuts the arrays to the numbers of voxels and points that Voxelize counted. Call it after the kernels.
  void CutToSize() {
    const auto num_voxels = static_cast<size_t>(sample_begin.back());
    keys.resize(num_voxels);
    voxel_begin.resize(num_voxels + 1);
    sorted_points.resize(static_cast<size_t>(voxel_begin.back()));
  }
};

}  // namespace voxserve::kernels::fixtures
