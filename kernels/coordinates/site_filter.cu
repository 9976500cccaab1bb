#include <cub/device/device_select.cuh>

#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/site_filter.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {
namespace {

struct Workspace {
  uint8_t* stays;  // [num_in]
  char* select_temp = nullptr;
  size_t select_temp_bytes = 0;
  size_t bytes;

  explicit Workspace(const SiteFilterParams& params) {
    WorkspaceCutter cutter(params.workspace);
    stays = cutter.Take<uint8_t>(params.num_in);
    if (Select(params, nullptr) != cudaSuccess)
      select_temp_bytes = 0;  // the same error is reported again when the launcher runs
    select_temp = cutter.Take<char>(static_cast<int64_t>(select_temp_bytes));
    bytes = cutter.bytes();
  }

  // With a null select_temp, only computes the bytes that it needs.
  cudaError_t Select(const SiteFilterParams& params, cudaStream_t stream) {
    return cub::DeviceSelect::Flagged(select_temp, select_temp_bytes, params.in_keys, stays, params.out_keys,
                                      params.num_out, params.num_in, stream);
  }
};

template <typename T>
__device__ bool IsAbove(const SiteFilterParams& params, int64_t row) {
  return ToFloat(static_cast<const T*>(params.scores.data)[row * params.scores.pitch]) > params.threshold;
}

// Tests one site per thread.
template <int kDimension, typename T>
__global__ void __launch_bounds__(kBlockThreads) FilterKernel(const SiteFilterParams params, uint8_t* stays) {
  using Key = MortonKey<kDimension>;
  const int64_t row = blockIdx.x * int64_t{kBlockThreads} + threadIdx.x;
  if (row >= params.num_in) return;
  bool site_stays = row < NumRows(params.num_in, params.device_num_in);
  if (site_stays) {
    const uint64_t key = params.in_keys[row];
#pragma unroll
    for (int axis = 0; axis < kDimension; ++axis) {
      const int32_t coordinate = Key::Coordinate(key, axis);
      site_stays = site_stays && coordinate >= params.lower[axis] && coordinate < params.upper[axis];
    }
    if (params.scores.data != nullptr) site_stays = site_stays && IsAbove<T>(params, row);
  }
  stays[row] = site_stays ? 1 : 0;
}

}  // namespace

size_t SiteFilterWorkspaceBytes(const SiteFilterParams& params) { return Workspace(params).bytes; }

cudaError_t SiteFilter(const SiteFilterParams& params, cudaStream_t stream) {
  const NvtxRange range("SiteFilter");
  if (params.num_in == 0) return cudaMemsetAsync(params.num_out, 0, sizeof(int64_t), stream);
  Workspace workspace(params);
  VOXSERVE_RETURN_IF_CUDA(VisitDimension(params.dimension, [&](auto dimension) {
    return VisitFeatureType(params.scores.dtype, [&](auto score) {
      FilterKernel<dimension(), decltype(score)>
          <<<NumBlocks(params.num_in), kBlockThreads, 0, stream>>>(params, workspace.stays);
      return LaunchStatus(stream);
    });
  }));
  return workspace.Select(params, stream);
}

}  // namespace voxserve::kernels::cuda
