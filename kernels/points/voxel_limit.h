#pragma once

// LimitVoxels keeps at most max_voxels voxels of every sample, the first ones by `order`. It works in place on the
// results of Voxelize: keys, voxel_begin, sorted_points and sample_begin are compacted and keep their order, and points
// of a dropped voxel become kDroppedPoint.
//
// kNearest orders voxels by the distance of their centres from the sensor, which stands at 0 on every axis. Ties go to
// the lexicographically smaller (coordinate 0, 1, ...), in any order of rows. kFirstSeen orders them by the place of
// their first point in the input, as spconv's point-to-voxel and OpenPCDet do. Points without a voxel do not count.
//
// The centre of index i lies at i * voxel_size where indices were rounded, at (i + 0.5) * voxel_size where they were
// floored, plus range_min where the origin is the range; the distance is taken in double over the first three axes (the
// fourth is time).

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
  VoxelizeParams voxels;  // the params of the call of Voxelize; its outputs are changed
  int64_t max_voxels = 0;
  VoxelOrder order = VoxelOrder::kNearest;

  int64_t* num_dropped_voxels = nullptr;  // [B]
  int64_t* num_dropped_points = nullptr;  // [B]

  void* workspace = nullptr;  // CUDA alone: LimitVoxelsWorkspaceBytes(*this), 256-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<VoxelLimitParams>);

namespace cpu {

// memory: for temporary arrays.
void LimitVoxels(const VoxelLimitParams& params, ThreadPool& pool,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Calls CUB, so it needs a device. Reads only num_points and num_samples.
size_t LimitVoxelsWorkspaceBytes(const VoxelLimitParams& params);
// Sorts num_points rows even if no sample exceeds the limit: three times by distance, or once by first points.
cudaError_t LimitVoxels(const VoxelLimitParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
