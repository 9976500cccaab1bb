#include <algorithm>

#include "kernels/coordinates/check_capacities.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr unsigned kMostBlocks = 264;
constexpr int32_t kNoVoxel = -1;

// Every block checks by itself whether all levels fit their capacities. The first block writes the numbers of sites. If
// a level does not fit, all blocks together set the voxel of every point to kNoVoxel.
__global__ void __launch_bounds__(kBlockThreads)
    CheckCapacitiesKernel(const __grid_constant__ CheckCapacitiesParams params) {
  WaitForEarlierKernels();
  static_assert(kMostHeldLevels <= kBlockThreads);
  const auto level = static_cast<int32_t>(threadIdx.x), axis = level;  // a thread checks one of each
  int64_t sites = 0;
  bool has_room = true;
  if (level < params.num_levels) {
    sites = level == 0 ? *params.num_voxels : params.num_sites[level];
    has_room = sites <= params.capacities[level];
  }
  if (axis < kMaxDimension && params.max_coordinate != nullptr && params.axis_bits[axis] > 0) {
    has_room = has_room && FitsAxisBits(params.max_coordinate[axis], params.axis_bits[axis]);
  }
  const bool have_room = __syncthreads_and(has_room) != 0;
  if (blockIdx.x == 0 && level < params.num_levels) params.held[level] = have_room ? sites : 0;
  if (have_room) return;
  for (int64_t point = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; point < params.num_points;
       point += int64_t{gridDim.x} * kBlockThreads) {
    params.point_to_voxel[point] = kNoVoxel;
  }
}

}  // namespace

cudaError_t CheckCapacities(const CheckCapacitiesParams& params, cudaStream_t stream) {
  const NvtxRange range("CheckCapacities");
  if (params.num_levels < 1 || params.num_levels > kMostHeldLevels) return cudaErrorInvalidValue;
  return LaunchEarly(CheckCapacitiesKernel, std::min(kMostBlocks, NumBlocks(params.num_points)), kBlockThreads, 0,
                     stream, params);
}

}  // namespace voxserve::kernels::cuda
