#pragma once

// InterpolationWeights finds, for each position, the 2^dimension sites of a level around it and their weights. A level
// is the list of the sites of a batch at one unit. The weight of a site is the product over the axes of 1 - distance,
// in the level's unit. Sites that do not exist get weight 0, and the other weights are divided by their sum + 1e-8.
// This is the trilinear devoxelization of SPVCNN (H. Tang et al., "Searching Efficient 3D Architectures with Sparse
// Point-Voxel Convolution", ECCV 2020; calc_ti_weights and sphashquery of its code).
//
// Positions are the sites of another level, or points. A point's position is its coordinate / voxel_size as Voxelize
// computes it, before rounding. So if Voxelize rounds to nearest, an integer position is the middle of a voxel; if it
// rounds down, an integer position is the lowest corner of a voxel.
//
// On CUDA, `keys` may be in any order; on the CPU they must ascend.

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <type_traits>

#include "kernels/coordinates/site_position.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"
#include "kernels/points/voxelize.h"

namespace voxserve::kernels {

struct InterpolationWeightsParams {
  int32_t dimension = 3;
  int64_t num_positions = 0;
  // CUDA only: [1] the number of positions that exist, in device memory; null: num_positions. The output for positions
  // after the existing ones is left as it is.
  const int64_t* device_num_positions = nullptr;
  SiteRatio ratio;  // from the positions' coordinates to the level's sites

  // If positions are sites: [num_positions] their keys. If they are points: the keys of the points' voxels. All keys of
  // this struct are CoordinateKeys on the CPU and MortonKeys on CUDA.
  const uint64_t* position_keys = nullptr;
  // The members up to `shift` are read only if positions are points.
  const int32_t* point_to_voxel = nullptr;  // [num_positions]; negative: no voxel, so no neighbours; null: sites
  ConstRows axes;                           // [num_positions] float32, as Voxelize reads them
  VoxelRounding rounding = VoxelRounding::kHalfEven;
  float voxel_size[kMaxDimension] = {1, 1, 1, 1};
  float shift[kMaxDimension] = {0, 0, 0, 0};  // the value that Voxelize subtracts before it divides by voxel_size

  const uint64_t* keys = nullptr;             // [num_sites] keys of the level
  int64_t num_sites = 0;                      // below 2^30
  const int64_t* device_num_sites = nullptr;  // CUDA only: [1] the number of valid keys; null: num_sites

  // Output: [num_positions, 2^dimension], rows `pitch` values apart. A row is aligned to 16 bytes, or to its size if
  // that is less. Bit dimension - 1 - axis of a neighbour's number says if it is the higher site on the axis. A
  // neighbour that does not exist or has weight 0 is -1, with weight 0.
  int32_t* neighbours = nullptr;
  float* weights = nullptr;
  int64_t pitch = 0;

  void* workspace = nullptr;  // CUDA only: InterpolationWeightsWorkspaceBytes(*this), 256-byte aligned, any contents
};
static_assert(std::is_trivially_copyable_v<InterpolationWeightsParams>);

namespace cpu {

// Temporary arrays are allocated from `memory`. Throws std::bad_alloc if it is used up.
void InterpolationWeights(const InterpolationWeightsParams& params, ThreadPool& pool,
                          std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. Reads only num_sites.
size_t InterpolationWeightsWorkspaceBytes(const InterpolationWeightsParams& params);
cudaError_t InterpolationWeights(const InterpolationWeightsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
