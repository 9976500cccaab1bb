#include "kernels/core/binary_search.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/points/farthest/farthest_point_sample.h"
#include "kernels/points/farthest/selection_mask.h"

namespace voxserve::kernels::cuda {
namespace {

__device__ bool IsSelection(const SelectionMaskParams& params, int32_t sample) {
  if (params.is_restricted[sample] == 0) return false;
  const int64_t begin = params.selected_begin[sample];
  return begin < params.selected_begin[sample + 1] && params.selected[begin] != kNothingSelected;
}

__global__ void __launch_bounds__(kBlockThreads) MaskPointsKernel(SelectionMaskParams params) {
  const int64_t point = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (point >= params.num_points) return;
  const int32_t sample = RunOf(params.point_begin, params.num_samples, point);
  params.mask[point] = IsSelection(params, sample) ? uint8_t{0} : params.is_valid[point];
}

__global__ void __launch_bounds__(kBlockThreads) MarkSelectedKernel(SelectionMaskParams params) {
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i >= params.num_selected) return;
  const int32_t sample = RunOf(params.selected_begin, params.num_samples, i);
  if (IsSelection(params, sample)) params.mask[params.point_begin[sample] + params.selected[i]] = 1;
}

}  // namespace

cudaError_t SelectionMask(const SelectionMaskParams& params, cudaStream_t stream) {
  if (params.num_points == 0) return cudaSuccess;
  const NvtxRange range("SelectionMask");
  MaskPointsKernel<<<NumBlocks(params.num_points), kBlockThreads, 0, stream>>>(params);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  if (params.num_selected == 0) return cudaSuccess;
  MarkSelectedKernel<<<NumBlocks(params.num_selected), kBlockThreads, 0, stream>>>(params);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
