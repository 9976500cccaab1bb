#include <cuda/std/limits>

#include "kernels/core/launch.cuh"
#include "kernels/rows/argmax.h"

namespace voxserve::kernels::cuda {
namespace {

// Neighbouring threads that share a row: 8 of them read a whole sector of float32.
constexpr int kLanes = 8;
constexpr int kRowsPerBlock = kBlockThreads / kLanes;
static_assert(32 % kLanes == 0 && kBlockThreads % 32 == 0);

// All threads of a warp stay to the end, for its shuffles.
template <typename T, typename Label>
__global__ void __launch_bounds__(kBlockThreads)
    ArgmaxKernel(int64_t num_rows, int32_t channels, const T* in, int64_t in_pitch, Label* labels) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  float best_value = -::cuda::std::numeric_limits<float>::infinity();
  int32_t best = 0;  // with minus infinity: no lane of a row found anything
  if (row < num_rows) {
    for (int32_t c = lane; c < channels; c += kLanes) {
      const float value = ToFloat(in[row * in_pitch + c]);
      if (value > best_value) {
        best_value = value;
        best = c;
      }
    }
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const float other_value = __shfl_xor_sync(0xffffffffu, best_value, distance);
    const int32_t other = __shfl_xor_sync(0xffffffffu, best, distance);
    if (other_value > best_value || (other_value == best_value && other < best)) {
      best_value = other_value;
      best = other;
    }
  }
  if (lane == 0 && row < num_rows) labels[row] = static_cast<Label>(best);
}

}  // namespace

cudaError_t Argmax(const ArgmaxParams& params, cudaStream_t stream) {
  if (params.in.capacity == 0) return cudaSuccess;
  const NvtxRange range("Argmax");
  return VisitFeatureType(params.in.dtype, [&](auto value) {
    using T = decltype(value);
    const auto num_blocks = static_cast<unsigned>((params.in.capacity + kRowsPerBlock - 1) / kRowsPerBlock);
    const auto* in = static_cast<const T*>(params.in.data);
    if (params.labels.dtype == DType::kUint8) {
      ArgmaxKernel<<<num_blocks, kBlockThreads, 0, stream>>>(
          params.in.capacity, params.in.channels, in, params.in.pitch, static_cast<uint8_t*>(params.labels.data));
    } else {
      ArgmaxKernel<<<num_blocks, kBlockThreads, 0, stream>>>(
          params.in.capacity, params.in.channels, in, params.in.pitch, static_cast<uint16_t*>(params.labels.data));
    }
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
