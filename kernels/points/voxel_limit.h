#pragma once

// LimitVoxels keeps at most max_voxels voxels of every sample, and drops the others. `order` says which voxels stay:
// - kNearest keeps the voxels whose centres are nearest to the sensor, which is at 0 on every axis. If distances are
//   equal, the lexicographically smaller (coordinate 0, coordinate 1, ...) is first, on both devices.
// - kFirstSeen keeps the voxels whose first points come first in the input, as spconv's point-to-voxel and OpenPCDet
//   do.
//
// LimitVoxels works in place on the results of Voxelize. It compacts keys, voxel_begin, sorted_points and sample_begin,
// whose entries keep their order. point_to_voxel gets the new rows, and kDroppedPoint for the points of dropped voxels.
//
// The centre of a voxel with index i is at i * voxel_size if Voxelize rounded to nearest, and at (i + 0.5) * voxel_size
// if it rounded down; with the origin kRange, range_min is added. The distance is computed in double over the first
// three axes (the fourth is time).

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/thread_pool.h"
#include "kernels/points/voxelize.h"

namespace voxserve::kernels {

enum class VoxelOrder : int32_t { kNearest, kFirstSeen };

struct VoxelLimitParams {
  VoxelizeParams voxels;  // the params of the call of Voxelize, whose outputs are changed
  int64_t max_voxels = 0;
  VoxelOrder order = VoxelOrder::kNearest;

  int64_t* num_dropped_voxels = nullptr;  // output: [B]
  int64_t* num_dropped_points = nullptr;  // output: [B] points of dropped voxels

  void* workspace = nullptr;  // CUDA only: LimitVoxelsWorkspaceBytes(*this), 256-byte aligned, any contents
};
static_assert(std::is_trivially_copyable_v<VoxelLimitParams>);

namespace cpu {

// Temporary arrays are allocated from `memory`. Throws std::bad_alloc if it is used up.
void LimitVoxels(const VoxelLimitParams& params, ThreadPool& pool,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. Above 16 million points it needs a device (SortPairsScratchBytes). Reads only
// num_points and num_samples.
size_t LimitVoxelsWorkspaceBytes(const VoxelLimitParams& params);
// Sorts num_points rows even if no sample has more than max_voxels voxels: once for kFirstSeen; for kNearest twice if
// there is one sample, else three times.
cudaError_t LimitVoxels(const VoxelLimitParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
