#include "kernels/core/launch.cuh"
#include "tests/bench/plain_farthest_point_sample.h"

namespace voxserve::bench {
namespace {

constexpr int kPlainThreads = 1024;

__global__ void __launch_bounds__(kPlainThreads)
    PlainFarthestPointSampleKernel(const __grid_constant__ PlainFarthestPointSampleParams params) {
  __shared__ float furthest[kPlainThreads];
  __shared__ int32_t furthest_index[kPlainThreads];
  const int64_t sample = blockIdx.x;
  const auto thread = static_cast<int>(threadIdx.x);
  const float* const __restrict__ points = params.points + sample * params.num_points * 3;
  float* const __restrict__ distances = params.distances + sample * params.num_points;
  int32_t* const __restrict__ selected = params.selected + sample * params.num_selected;
  for (int32_t i = thread; i < params.num_points; i += kPlainThreads) distances[i] = __int_as_float(0x7f800000);
  int32_t last = 0;
  if (thread == 0) selected[0] = last;
  for (int32_t s = 1; s < params.num_selected; ++s) {
    const float x = points[last * 3], y = points[last * 3 + 1], z = points[last * 3 + 2];
    float best = -1;
    int32_t best_index = 0;
    for (int32_t i = thread; i < params.num_points; i += kPlainThreads) {
      const float dx = __fsub_rn(points[i * 3], x);
      const float dy = __fsub_rn(points[i * 3 + 1], y);
      const float dz = __fsub_rn(points[i * 3 + 2], z);
      const float distance = __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
      const float nearer = min(distance, distances[i]);
      distances[i] = nearer;
      best_index = nearer > best ? i : best_index;
      best = nearer > best ? nearer : best;
    }
    furthest[thread] = best;
    furthest_index[thread] = best_index;
    __syncthreads();
    for (int half = kPlainThreads / 2; half > 0; half /= 2) {
      if (thread < half) {
        const float other = furthest[thread + half];
        const int32_t other_index = furthest_index[thread + half];
        if (other > furthest[thread] || (other == furthest[thread] && other_index < furthest_index[thread])) {
          furthest[thread] = other;
          furthest_index[thread] = other_index;
        }
      }
      __syncthreads();
    }
    last = furthest_index[0];
    if (thread == 0) selected[s] = last;
  }
}

}  // namespace

cudaError_t PlainFarthestPointSample(const PlainFarthestPointSampleParams& params, cudaStream_t stream) {
  if (params.num_samples == 0 || params.num_selected == 0) return cudaSuccess;
  const kernels::cuda::NvtxRange range("PlainFarthestPointSample");
  PlainFarthestPointSampleKernel<<<static_cast<unsigned>(params.num_samples), kPlainThreads, 0, stream>>>(params);
  return kernels::cuda::LaunchStatus(stream);
}

}  // namespace voxserve::bench
