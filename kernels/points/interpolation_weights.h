#pragma once

// InterpolationWeights finds the 2^dimension sites of a level around each position, and their weights. A weight is the
// product over the axes of 1 - distance, in the level's own unit. Sites that do not exist are left out, and the other
// weights are divided by their sum + 1e-8. This is the trilinear devoxelization of SPVCNN (H. Tang et al., "Searching
// Efficient 3D Architectures with Sparse Point-Voxel Convolution", ECCV 2020; calc_ti_weights and sphashquery of its
// code).
//
// Positions are other sites, or points. A point's position is its coordinate / voxel_size as Voxelize computes it,
// before rounding. So an integer position is the middle of a voxel with rounding to nearest, and the lowest corner of a
// voxel with floor.
//
// On CUDA rows and keys may stand in any order; on the CPU keys ascend.

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
  SiteRatio ratio;  // from the positions' coordinates to the level's sites

  // Keys are CoordinateKeys on the CPU, MortonKeys on CUDA. If there are fewer sites than num_positions, keys behind
  // the last site may be arbitrary, and so are their neighbours in the output.
  const uint64_t* position_keys = nullptr;  // of sites: [num_positions]; of points: of the voxels
  // Set only if positions are points; null for sites.
  const int32_t* point_to_voxel = nullptr;  // [num_positions]; negative: no voxel, and then no neighbours
  ConstRows axes;                           // [num_positions] float32, as Voxelize reads them
  VoxelRounding rounding = VoxelRounding::kHalfEven;
  float voxel_size[kMaxDimension] = {1, 1, 1, 1};
  float shift[kMaxDimension] = {0, 0, 0, 0};  // what Voxelize subtracts before it divides

  const uint64_t* keys = nullptr;             // [num_sites] of the level
  int64_t num_sites = 0;                      // below 2^30
  const int64_t* device_num_sites = nullptr;  // CUDA: if not null, [1] how many keys are valid

  // Output, rows of 2^dimension values `pitch` apart, aligned to 16 bytes or to a row's values where that is less. The
  // LAST axis is fastest. A neighbour that does not exist, or counts nothing, is -1 and has weight 0.
  int32_t* neighbours = nullptr;
  float* weights = nullptr;
  int64_t pitch = 0;  // values

  void* workspace = nullptr;  // CUDA alone: InterpolationWeightsWorkspaceBytes(*this), 256-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<InterpolationWeightsParams>);

namespace cpu {

// memory: for temporary arrays.
void InterpolationWeights(const InterpolationWeightsParams& params, ThreadPool& pool,
                          std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Reads only num_sites.
size_t InterpolationWeightsWorkspaceBytes(const InterpolationWeightsParams& params);
cudaError_t InterpolationWeights(const InterpolationWeightsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
